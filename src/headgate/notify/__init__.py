"""Alerts: who is told of what, over which channels, how often, and until someone has said that they have seen it."""
