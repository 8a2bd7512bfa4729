"""Distributed Map: splits items into chunks of a fan-out, runs their iterations, and collects the results."""
