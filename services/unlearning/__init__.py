"""Unlearning methods, one package each, and what each of them promises and needs."""
