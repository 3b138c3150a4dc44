"""Permutations of the scenarios, on the bus in memory and in virtual time.

Each scenario has its one test on a real server in ``tests/scenarios``. What varies it, such as
other policies, modes, orders, strategies and faults, is here: the same interface (``world``), the
same API application and provider, and no process, no socket and no real second.
"""
