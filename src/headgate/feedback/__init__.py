"""Feedback: say here what this part is for."""
