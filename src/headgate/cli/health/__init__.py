"""Commands for dataset health: datasets, signals, incidents, evidence, lineage, gate, audit, API keys, regions."""
