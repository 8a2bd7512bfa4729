"""Catalogue: every table, key, index, TTL and change stream."""
