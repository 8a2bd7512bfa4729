"""Catalog: stored pipeline definitions and calendars with their versions, and checks of proposed definitions."""
