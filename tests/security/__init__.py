"""Permissions and secrecy, tested on a server with the permissions that the product prints."""
