"""Plans: what the loop would do."""
