"""A deterministic simulation of the whole loop: real services, simulated bus, API and clock.

One seed gives one plan (``plan``): who declares what, what humans do, and every fault. The real
services of ``reconciler.roles`` run on one thread over an event loop with a clock of its own
(``loop``), a bus (``bus``) and an API (``api``) that misbehave as the plan says. ``checks`` looks
at every append and every effect, ``ending`` at what is left when the faults have stopped.

After "Simulation Testing" of FoundationDB (Will Wilson, Strange Loop 2014) and TigerBeetle's
simulator; shrinking is Zeller's delta debugging ("Yesterday, my program worked", 1999).
"""
