"""The checks of `doctor`: one module per part of the system, one finding per check."""
