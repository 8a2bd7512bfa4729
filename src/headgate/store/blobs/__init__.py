"""Blobs: large immutable payloads, in a folder or in S3, and the spill of large attributes into them."""
