"""The environment of every role: clock and ids, the log feed, and the connections to APIs."""
