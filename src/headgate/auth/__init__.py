"""Auth: who calls, and what they may do."""
