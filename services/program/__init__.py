"""The contract between the engine and the methods: a program is two pure functions and a serialisable state."""
