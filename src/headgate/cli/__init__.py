"""Command line: one module per command group. Commands import their dependencies when they run, so help is fast."""
