"""Commands for pipelines, their runs and periods, sensors, traits, backfills, calendars and alerts."""
