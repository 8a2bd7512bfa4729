"""The lifespan of an ASGI application without start-up and shutdown work."""

from __future__ import annotations

from typing import Any


async def run_lifespan(receive: Any, send: Any) -> None:
    """Report the application as started, then as stopped."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
