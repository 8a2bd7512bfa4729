"""Remote client: starts, reads and messages executions of a server over HTTP."""
