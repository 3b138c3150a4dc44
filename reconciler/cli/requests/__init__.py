"""Commands that send one message per resource, and print the decider's replies."""
