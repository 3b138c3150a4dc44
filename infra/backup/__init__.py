"""Backups of the log, which contain all ownership in one file, and their restore."""
