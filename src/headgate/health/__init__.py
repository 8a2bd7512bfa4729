"""Health: the state of every dataset, its incidents, and the evidence and lineage that explain them."""
