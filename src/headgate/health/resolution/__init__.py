"""Resolution: rules that map messages of a topic to datasets, and the producers of topics."""
