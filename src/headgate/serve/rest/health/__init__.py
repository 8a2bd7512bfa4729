"""REST API of datasets, signals, incidents, evidence, lineage, gate, resolution, flags, audit and API keys."""
