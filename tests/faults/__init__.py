"""Faults to survive, each on the real thing, judged by the checker of histories."""
