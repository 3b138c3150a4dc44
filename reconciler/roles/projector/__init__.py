"""The projector: read models, and what the log has lost."""
