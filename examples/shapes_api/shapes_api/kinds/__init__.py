"""The ``Shape`` and ``Record`` kinds, and the providers of their two APIs."""
