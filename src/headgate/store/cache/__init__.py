"""Cache: read-through caching in memory and in Redis."""
