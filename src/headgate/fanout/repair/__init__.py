"""Repair: operator control, redrive, healing, bisection, reconciliation and retention of fan-outs."""
