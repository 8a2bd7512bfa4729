"""Benchmarks. Each figure is a ratio to a yardstick measured in the same run, because absolute times are noise."""
