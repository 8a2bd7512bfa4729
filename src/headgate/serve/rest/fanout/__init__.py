"""REST API of fan-outs, chunks, campaigns and plots."""
