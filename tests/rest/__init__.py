"""Kinds that are defined as an HTTP API, on real ones: by a manifest, and no code."""
