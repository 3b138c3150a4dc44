"""Providers: the contract of each with its real API, and tests of their parts."""
