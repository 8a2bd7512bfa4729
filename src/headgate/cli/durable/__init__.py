"""Commands for workflows, executions, schedules, events and workers."""
