"""Core: splitting, attempts, state transitions, queries and maintenance of fan-outs."""
