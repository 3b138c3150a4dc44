"""The sweeper, which wakes waiting resources, and reports references and their targets."""
