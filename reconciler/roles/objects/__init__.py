"""Objects of external APIs on their way into the log: checked for secrets, size and twins."""
