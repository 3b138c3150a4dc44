"""The outside: JetStream, HTTP, the external APIs' clients, and the servers that ``up`` starts."""
