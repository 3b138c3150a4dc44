"""The projector, which maintains the read models and detects lost events."""
