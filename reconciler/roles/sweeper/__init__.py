"""The sweeper: wakes waiting resources, and reports references and their targets."""
