"""Signals: deciding, writing, coalescing and reading them, with their history, volumes and baselines."""
