"""Model: stored rows, history events, payloads, failures and policies of durable execution."""
