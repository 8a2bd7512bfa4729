"""Serving: HTTP and gRPC. Translates between protocols and the rest of Headgate; contains no domain decisions."""
