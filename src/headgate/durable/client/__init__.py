"""Client: starts, reads and messages executions from outside."""
