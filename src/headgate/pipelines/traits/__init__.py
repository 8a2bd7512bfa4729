"""Traits: named checks of a pipeline, their evaluators and their stored results."""
