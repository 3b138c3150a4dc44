"""Composed kinds, whose API is Reconciler itself: an object is a set of declared resources.

The log contains an object's content as a ``ComposedSet``, which is declared before the first child
and with the expected generation. So an interrupted effect continues where it stopped, and one of
two concurrent writers is rejected. Message ids derive from the action's key and the child, so a
retry declares nothing twice (ADR 0050).
"""
