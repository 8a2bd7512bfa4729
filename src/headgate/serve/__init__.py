"""Serving: HTTP and gRPC. It translates between protocols and the rest of Headgate, and decides nothing.

This is the only package that knows asyncio. What blocks runs in `pool`.
"""
