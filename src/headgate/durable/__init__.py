"""Durable execution: workflows, activities, timers, signals and the event bus, recovered by replay of a history."""
