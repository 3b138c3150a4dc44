"""Backups of the log: one file that holds a whole ownership, and what makes it a log again."""
