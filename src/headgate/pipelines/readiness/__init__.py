"""Readiness: evaluation, polling and waiting, quarantine, explanations and simulations."""
