"""Authoring: loads and validates definitions, with archetypes, JSON Schema and project scaffolding."""
