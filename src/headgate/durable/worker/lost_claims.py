"""Orphans: claims in this worker's name that nobody here knows of, because the answer to a claim was lost.

Whoever is busy with a claim may be kept waiting by the store for longer than two looks for orphans are apart. So a
claim is known from the moment it is made until its end is stored, wherever in this process it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from headgate.durable.model.records import Activity

if TYPE_CHECKING:
    from headgate.durable.worker.worker import Worker


class _InHand(Struct):
    """The block in which someone is busy with a claim. A structure, because every activity passes through one."""

    tokens: set[str]
    token: str

    def __enter__(self) -> None:
        self.tokens.add(self.token)

    def __exit__(self, *raised: object) -> None:
        self.tokens.discard(self.token)


class Orphans:
    """Finds the orphans of one worker. `found` is for the thread that polls."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # Claims of the turn that is being led, and those that a thread is busy with and that are in no list.
        self._in_turn: list[str] = []
        self._in_hand: set[str] = set()
        self._seen: set[str] = set()

    def claimed(self, activity: Activity) -> Activity:
        """Return what a turn has claimed, which is known until the turn is over."""
        self._in_turn.append(activity.token)
        return activity

    def turn_is_over(self) -> None:
        """What the turn claimed is in the queue, or was not committed."""
        self._in_turn.clear()

    def in_hand(self, activity: Activity) -> _InHand:
        """Say that someone is busy with a claim within the block, however long the store takes."""
        return _InHand(self._in_hand, activity.token)

    def found(self) -> list[Activity]:
        """Return what was unknown at two looks in a row: once could be a claim that is just being handed on."""
        known = self._known()
        told = self._worker.engine.ready.ids_told()
        held = self._worker.activities.held()
        unknown = [each for each in held if each.token not in known and each.activity_id not in told]
        found = [each for each in unknown if each.token in self._seen]
        self._seen = {each.token for each in unknown} - {each.token for each in found}
        # The index may be behind the row, which has ended.
        return [each for each in found if self._worker.is_held(each)]

    def _known(self) -> set[str]:
        worker = self._worker
        # In the order in which a claim passes through these, each copied at once: other threads move it on meanwhile.
        known = set(self._in_turn)
        known.update(activity.token for activity in list(worker.queue))
        known.update(running.activity.token for running in list(worker.running.values()))
        known.update(list(self._in_hand))
        known.update(activity.token for activity, _ in list(worker.unfinished))
        return known
