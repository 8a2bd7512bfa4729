"""Commands for fan-outs and their chunks."""
