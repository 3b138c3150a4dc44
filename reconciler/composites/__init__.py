"""Kinds made of other resources: pure functions that say which ones, from what is there (ADR 0050).

``compose(key, spec, observed)`` is asked wherever `decide` compares wanted with observed. What it
returns is the content of an object like any other: its API is this reconciler
(`infra.providers.composition`), and its object is the set of children.
"""
