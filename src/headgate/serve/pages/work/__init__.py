"""Pages of work: runs, expectations, backfills, executions, state machines, schedules, fan-outs and workers."""
