"""Tests that kill processes at every step, and check that nothing is lost or duplicated."""
