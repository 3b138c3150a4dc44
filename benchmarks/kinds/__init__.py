"""Containers, roles and grants: what declaring, healing and listing cost beside hands."""
