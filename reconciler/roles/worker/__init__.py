"""The worker, which calls external APIs."""
