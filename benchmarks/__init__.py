"""Measurements of the whole system as users run it; README.md describes each."""
