"""The observer, which reads the objects of external APIs."""
