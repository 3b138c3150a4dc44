"""Processes that die at every step, and what must hold afterwards."""
