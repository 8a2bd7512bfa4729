"""Chunk trackers: what the chunk SDK needs to record attempts, in the store itself or over the API of a server."""

from __future__ import annotations

from typing import Protocol

from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.tracking import Claim, Start
from headgate.fanout.model.rows import Chunk


class ChunkTracker(Protocol):
    """Records attempts, each step once; `headgate.fanout.core.tracking.Tracker` says which errors each raises."""

    def start(
        self,
        run_id: str,
        chunk_id: str,
        *,
        worker: str,
        receive_count: int = 0,
        message_id: str | None = None,
        lease_seconds: float | None = None,
    ) -> Start:
        """Start an attempt at a chunk if it may run now."""

    def heartbeat(self, claim: Claim, *, items_done: int | None = None, lease_seconds: float | None = None) -> Claim:
        """Extend the lease and record the progress."""

    def complete(self, claim: Claim, result: AttemptResult) -> Chunk:
        """Complete the chunk."""

    def fail(self, claim: Claim, failure: AttemptFailure) -> Chunk:
        """Record a failed attempt."""

    def release(self, claim: Claim) -> Chunk:
        """Return the chunk to the queue unfinished; the attempt does not count."""

    def now_ms(self) -> int:
        """Return the time that stored times are compared with."""
