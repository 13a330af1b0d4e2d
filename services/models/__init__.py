"""The built-in models: their parameters (no torch), how they are built, and the kernel that makes the first weights."""
