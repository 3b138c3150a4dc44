"""Plans: the actions that a declaration would cause."""
