"""Amazon States Language on the durable engine."""
