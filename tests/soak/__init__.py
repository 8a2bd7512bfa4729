"""Soak: long runs that publish figures about reliability. `make soak` runs them and writes docs/reliability.md."""
