"""Model: compiled definitions, the transitions of a definition, and variable substitution."""
