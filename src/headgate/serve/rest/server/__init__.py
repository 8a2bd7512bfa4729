"""Server API: the settings in effect, and the sessions of people."""
