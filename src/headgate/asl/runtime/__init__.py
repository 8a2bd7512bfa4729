"""Runtime: the interpreter of state machines, its host on the durable engine, and the history of an execution."""
