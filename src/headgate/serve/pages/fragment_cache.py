"""Fragment cache: equal open pages share the rendering of a change.

A page asks for its content as of a batch of the change feed. A rendering that began after that batch includes it, and
serves all pages of the same caller and address. A request without a batch is always rendered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final

from msgspec import Struct

# How long a rendering is used, from its begin: what changes with time alone is shown within this time.
AGE_SECONDS_MAX: Final = 1.0
BYTES_MAX: Final = 16 * 1024 * 1024


class Rendered(Struct, frozen=True):
    """A rendered page or fragment. The digest of one that may not be used again is empty."""

    content: bytes
    status: int
    headers: Mapping[str, str]
    digest: str = ""


class _Entry:
    def __init__(self, sequence: int, begun_at: float) -> None:
        self.sequence = sequence
        self.begun_at = begun_at
        self.rendering: asyncio.Task[Rendered] | None = None
        self.fragment: Rendered | None = None


class FragmentCache:
    """Rendered fragments by caller and address. Used from the event loop only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: dict[Hashable, _Entry] = {}
        self.render_count = 0
        self.shared_count = 0

    async def get(
        self, key: Hashable, as_of: int, sequence: int, render: Callable[[], Awaitable[Rendered]]
    ) -> Rendered:
        """Return a fragment that includes batch `as_of`. `sequence` is the current batch. Raises errors of `render`.

        The key holds everything that the content depends on besides data and time: the caller above all.
        """
        entry = self._entries.get(key)
        if entry is not None and entry.sequence >= as_of:
            is_young = self._now() - entry.begun_at < AGE_SECONDS_MAX
            if entry.fragment is not None and is_young:
                self.shared_count += 1
                return entry.fragment
            # However long it takes: further renderings of a slow page would make it slower.
            if entry.rendering is not None and entry.rendering.get_loop() is asyncio.get_running_loop():
                self.shared_count += 1
                return await asyncio.shield(entry.rendering)
        entry = self._entries[key] = _Entry(sequence, self._now())
        # A task of its own: the others wait for it even if the first caller disconnects.
        rendering = entry.rendering = asyncio.ensure_future(self._render(key, entry, render))
        rendering.add_done_callback(_retrieved)
        return await asyncio.shield(rendering)

    async def _render(self, key: Hashable, entry: _Entry, render: Callable[[], Awaitable[Rendered]]) -> Rendered:
        self.render_count += 1
        try:
            fragment = await render()
            if fragment.digest:
                entry.fragment = fragment
            return fragment
        finally:
            entry.rendering = None
            if entry.fragment is None and self._entries.get(key) is entry:
                del self._entries[key]
            self._drop_old()

    def _drop_old(self) -> None:
        now, kept_bytes = self._now(), 0
        for key, entry in sorted(self._entries.items(), key=lambda each: -each[1].begun_at):
            if entry.fragment is None:
                continue
            kept_bytes += len(entry.fragment.content)
            if now - entry.begun_at >= AGE_SECONDS_MAX or kept_bytes > BYTES_MAX:
                del self._entries[key]


def _retrieved(rendering: asyncio.Task[Rendered]) -> None:
    """Take note of an error, of which asyncio would warn when all callers have disconnected."""
    if not rendering.cancelled():
        rendering.exception()
