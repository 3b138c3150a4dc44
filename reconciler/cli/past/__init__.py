"""Commands about the past: what happened to resources, why, and what changed."""
