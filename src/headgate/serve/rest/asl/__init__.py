"""REST API of state machines, their executions and task tokens."""
