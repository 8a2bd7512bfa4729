"""Lineage: the writers and readers of datasets and columns, the graph of them, and blast radii."""
