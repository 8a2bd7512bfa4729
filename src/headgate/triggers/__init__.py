"""Triggers: start the jobs of pipelines, poll their state, and cancel them."""
