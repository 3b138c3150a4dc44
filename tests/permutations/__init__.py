"""Permutations of the scenarios, on the bus in memory and in virtual time.

Each scenario has one test on a real server in ``tests/scenarios``. Its variations, such as other
policies, modes, orders, strategies and faults, are in this folder. They use the same interface
(``world``), API application and provider, but no process, no socket and no real time.
"""
