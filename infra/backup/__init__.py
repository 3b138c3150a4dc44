"""Backups of the log: one file with all ownership, and its restore."""
