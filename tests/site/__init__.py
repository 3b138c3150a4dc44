"""The story over all systems: the example `examples/site`."""
