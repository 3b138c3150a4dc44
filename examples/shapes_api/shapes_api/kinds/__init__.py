"""The kinds ``Shape`` and ``Record``, and the providers of their two APIs."""
