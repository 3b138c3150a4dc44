"""The providers: a contract that each of them keeps with its real API, and their parts alone."""
