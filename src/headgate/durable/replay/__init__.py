"""Replay: runs workflow code deterministically from its history, and checks that it is deterministic."""
