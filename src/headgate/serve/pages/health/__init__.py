"""Pages of dataset health: datasets, incidents and lineage."""
