"""Tests of the example `examples/site`, which uses all systems."""
