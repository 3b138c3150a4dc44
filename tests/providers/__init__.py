"""The providers: a contract that each keeps with its real API, and their parts alone."""
