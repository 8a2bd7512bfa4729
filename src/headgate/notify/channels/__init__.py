"""Channels: console, file, webhook, Slack, PagerDuty, e-mail and SNS."""
