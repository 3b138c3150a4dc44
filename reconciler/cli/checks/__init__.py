"""The `doctor` checks: one module per part of the system, one finding per check."""
