"""Commands that send one message per resource, and print the responses of the decider."""
