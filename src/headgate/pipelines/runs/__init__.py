"""Runs and everything that is recorded about them: logs, locks, reruns, retries, markers, controls and orders."""
