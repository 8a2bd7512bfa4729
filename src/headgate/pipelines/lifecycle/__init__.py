"""The lifecycle of a run: actions behind the state machine, their messages, and the components that start it."""
