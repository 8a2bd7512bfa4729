"""Commands that find ids: completion in shells, and `headgate open`."""
