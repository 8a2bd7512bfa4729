"""Compile: validates definitions and compiles them to the model; estimates their event count."""
