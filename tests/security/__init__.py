"""Who may do what, proved against a server with the permissions that the product prints."""
