"""Model: stored rows, states, counters, sources and messages of fan-outs."""
