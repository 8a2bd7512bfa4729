"""The demo: a small shop's data platform, and a story of a bad deployment told with it."""
