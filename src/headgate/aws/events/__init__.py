"""Event functions: the event bus of Headgate and EventBridge, in both directions."""
