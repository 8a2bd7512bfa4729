"""Incidents: opening, joining, changing, resolving and listing them, and their timers."""
