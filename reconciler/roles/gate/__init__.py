"""Whether an external API may be called now: its breaker, its rate limit, its holds in the log."""
