"""Triggers: what starts the jobs of pipelines, asks how they are, and ends them."""
