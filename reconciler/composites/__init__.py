"""Kinds that consist of other resources, as pure functions of their observed state (ADR 0050).

`decide` calls ``compose(key, spec, observed)`` whenever it compares the desired and the observed
state. The result is the content of an ordinary object. Its API is this reconciler
(`infra.providers.composition`), and its object is the set of parts.
"""
