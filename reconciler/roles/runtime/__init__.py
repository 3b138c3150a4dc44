"""What every role runs on: clock and ids, the growing log, and the connections to APIs."""
