"""Pages of work: executions, state machines, schedules, fan-outs and workers."""
