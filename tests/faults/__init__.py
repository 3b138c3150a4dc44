"""Faults on the real thing; each test's docstring or name begins with the number of its fault."""
