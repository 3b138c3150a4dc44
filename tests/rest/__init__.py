"""Kinds that a manifest defines on an HTTP API without code, tested on real APIs."""
