"""Insight: progress, estimates, stuck chunks, error groups, comparisons and plots of fan-outs."""
