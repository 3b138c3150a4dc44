"""The worker: calls external APIs."""
