"""Three nodes, roles as processes, and a nemesis: nodes and roles die, hang and come back."""
