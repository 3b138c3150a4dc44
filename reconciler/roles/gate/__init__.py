"""Whether an external API may be called now: its breaker, its rate limit and its holds."""
