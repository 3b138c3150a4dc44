"""The API of composed kinds is this reconciler: an object is a set of resources that it declares.

What an object is made of is itself in the log, as a ``ComposedSet``. It is declared before the
first child is, and bound to its generation: so an effect that was cut off goes on where it stopped,
and of two writers one is refused. Each message's id is made from the action's key and the child, so
a repeat declares nothing twice (ADR 0050).
"""
