"""A deterministic simulation of the whole loop: real services, simulated bus, API and clock.

One seed gives one plan (``plan``): who declares what, what humans do, and every fault. The real
services of ``reconciler.roles`` run on one thread on an event loop with virtual time,
with a simulated bus and API (``api``) that misbehave according to the plan. ``tests.judge`` checks
every append and every effect, and ``ending`` the final state after the faults have stopped.

After "Simulation Testing" of FoundationDB (Will Wilson, Strange Loop 2014) and TigerBeetle's
simulator; shrinking is Zeller's delta debugging ("Yesterday, my program worked", 1999).
"""
