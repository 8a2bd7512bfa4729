"""Registry: datasets with their configs, versions, aliases, change feed, and lookups that survive an outage."""
