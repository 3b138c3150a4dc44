"""Commands about the history of resources: events, causes and changes."""
