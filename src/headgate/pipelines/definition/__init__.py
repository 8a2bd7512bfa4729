"""The definition of a pipeline: its model, bounds, decoding from files, and serialization."""
