"""The loop between health and pipelines."""
