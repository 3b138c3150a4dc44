"""Adapters: JetStream, HTTP, clients for external APIs, and the servers that ``up`` starts."""
