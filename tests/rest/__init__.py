"""Kinds that a manifest defines for an HTTP API without code, tested with real APIs."""
