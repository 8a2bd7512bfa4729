"""The demo: a small shop's data platform, and the story of a bad deployment."""
