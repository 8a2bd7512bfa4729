"""Event bus: events, subscriptions, deliveries, dead letters, replays and forwarding over HTTP."""
