"""What exists, by name: plans.py (programs) and kernels.py (server maths). Client handlers live with the worker."""
