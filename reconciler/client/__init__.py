"""What other services do with the reconciler: declare, wait, subscribe, read the history, observe.

The public import is ``reconciler.sdk``; here is what it is made of, over a narrow port.
"""
