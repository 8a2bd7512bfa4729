"""Regions: one writer region at a time, failover between two, merging of their rows, and table restore."""
