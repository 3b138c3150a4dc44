"""The API of composed kinds is this reconciler: an object is a set of declared resources.

The content of an object is in the log, as a ``ComposedSet``. It is declared before the first child,
and bound to its generation: an interrupted effect continues where it stopped, and of two writers
one is refused. The id of each message comes from the action's key and the child, so a repeat
declares nothing twice (ADR 0050).
"""
