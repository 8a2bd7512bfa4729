"""REST API of pipelines, runs, sensors, traits, readiness, calendars, alerts and controls."""
