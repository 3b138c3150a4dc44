"""Commands that send one message for each of some resources, and print the decider's answers."""
