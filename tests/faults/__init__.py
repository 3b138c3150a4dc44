"""Faults to survive, each on the real thing, judged by the checker of histories.

Each test's docstring or name begins with the number of its fault.
"""
