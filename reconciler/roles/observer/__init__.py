"""The observer: what external APIs have."""
