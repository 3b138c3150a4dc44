"""Commands that show the history of resources: events, causes and changes."""
