"""REST API of executions, activities, schedules, events, subscriptions, dead letters and workers."""
