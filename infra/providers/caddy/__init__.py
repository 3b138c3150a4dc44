"""Routes of a Caddy server: which hosts and paths go to which backends."""
