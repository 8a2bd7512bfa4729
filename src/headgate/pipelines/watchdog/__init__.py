"""The watchdog: finds runs that are missed, stuck, late or lost, and publishes each finding once."""
