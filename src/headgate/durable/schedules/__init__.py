"""Schedules: start workflows by cron expression or interval, once for each slot."""
