"""Adapters: JetStream, HTTP, the clients of external APIs, and the servers that ``up`` starts."""
