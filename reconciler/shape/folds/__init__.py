"""How each event changes the state of its shape: ``FOLDS`` of each module, by type of event."""
