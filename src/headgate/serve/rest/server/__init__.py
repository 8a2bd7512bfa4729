"""Server API: the effective settings."""
