"""The cost of queries about the past of a long log."""
