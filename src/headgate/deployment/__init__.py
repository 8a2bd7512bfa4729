"""Deployments on AWS: their diagnosis and their costs."""
