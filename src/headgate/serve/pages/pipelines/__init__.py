"""Pages of pipelines: definitions, runs, expectations and backfills."""
