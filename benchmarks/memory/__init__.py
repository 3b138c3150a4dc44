"""What it costs to ask a long log about the past."""
