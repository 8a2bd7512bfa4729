"""Resilience: circuit breakers, rate limiters and retries around a store."""
