"""The cost of declaring, repairing and listing containers, roles and grants."""
