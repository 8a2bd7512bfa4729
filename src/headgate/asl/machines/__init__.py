"""Machines: stored definitions, their executions, and the activities that Tasks call."""
