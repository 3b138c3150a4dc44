"""Objects of external APIs before they enter the log: checked for secrets, size and twins."""
