"""Pipeline events: their names and types, and the outbox that publishes and stores them."""
