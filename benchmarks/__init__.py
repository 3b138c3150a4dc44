"""Measurements of the whole system as people run it; what each measures is in README.md."""
