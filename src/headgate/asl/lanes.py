"""Lanes: works that go beside each other in an execution, of which none outlives the state that began them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def all_done(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all works. The first that fails ends the rest and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        # Whoever failed or was cancelled: nobody is left running, and nobody's end goes unheard.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
