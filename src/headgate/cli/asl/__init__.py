"""Commands for state machines in Amazon States Language."""
