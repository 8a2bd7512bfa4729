"""Alerts: routes events to channels, with deduplication, grouping, mutes, escalation and acknowledgement."""
