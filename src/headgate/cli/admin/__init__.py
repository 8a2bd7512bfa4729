"""Commands that look after an installation: backups, keys, settings, sessions and tables."""
