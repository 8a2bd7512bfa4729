"""Attacks: what a caller of the API must not be able to do, against the installed program."""
