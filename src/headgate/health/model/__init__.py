"""Values of the health domain: datasets, signals, incidents, their vocabulary, ids, timestamps and events."""
