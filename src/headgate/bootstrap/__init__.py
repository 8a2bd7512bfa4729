"""Bootstrap: builds the object graph of a process from its settings."""
