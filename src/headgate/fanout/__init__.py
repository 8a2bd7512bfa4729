"""Fan-outs: work split into chunks, each visible, counted once and recoverable."""
