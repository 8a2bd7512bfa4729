"""Healing: what is done about dead chunks without anyone asking, as the policy of their fan-out says."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import moved_to, pause_seconds
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, Policy, moment, queue
from headgate.fanout.model.sources import check_input
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.reopen import Note, Reopener, again, check_reopenable, send_waiting
from headgate.ids import IdMaker
from headgate.store.port import Store

BATCH: Final = 500
# How many chunks an answer names; it counts them all.
NAMED_MAX: Final = 1000


class Action(enum.StrEnum):
    """What can be done about a dead chunk."""

    RETRY = "retry"  # All its tries again, after a pause.
    SLOW_LANE = "slow-lane"  # One more try by the workers of the slow lane, which are given longer.
    SPLIT = "split"  # Cut in two, until the bad item is found.
    QUARANTINE = "quarantine"  # Put aside, so that it is not redriven with others by chance.


class Remedy(Struct, frozen=True):
    """What to do about a chunk, and why in a sentence."""

    action: Action
    why: str


class Treated(Struct, frozen=True):
    """A chunk and its remedy, or in `refused` why it could not be applied."""

    chunk_id: str
    action: Action
    said: str


class Healed(Struct, frozen=True):
    """What was done, or in a dry run would be. `treated` and `refused` name the first ones; `healed` counts all."""

    run_id: str
    is_dry_run: bool
    healed: int = 0
    treated: tuple[Treated, ...] = ()
    refused: tuple[Treated, ...] = ()
    # Dead chunks that the policy leaves alone.
    left: int = 0
    overtaken: int = 0
    # Dead chunks that are counted and were not found: an index lags, or they have just died. Ask again before
    # deciding that nothing is left to heal.
    unseen: int = 0
    # Why it was left off, if so: the fan-out is being cancelled, or its policy makes no sense.
    said: str | None = None


def remedy(chunk: Chunk, policy: Policy) -> Remedy | None:
    """Return what the policy does about a chunk, if anything. Raises `DefinitionError` for an action it cannot mean.

    Cutting in two comes to its end by itself; all else is done `heal_redrives_max` times to a chunk at most.
    """
    action = action_of(policy)
    if policy.heal_redrives_max <= 0 or chunk.disposition is not Disposition.DEAD or not _is_meant(chunk, policy):
        return None
    died = f"it died of {chunk.error_class or 'an unknown error'}"
    if action is Action.QUARANTINE:
        return Remedy(action, f"{died}: it is put aside")
    if action is Action.SPLIT and chunk.lane == MAIN_LANE:
        if chunk.items > 1:
            return Remedy(action, f"{died}: its {chunk.items} items are cut in two, and both halves tried")
        return Remedy(action, f"{died}: item {chunk.start} is the one that fails, and is put aside")
    if chunk.heals >= policy.heal_redrives_max:
        return None
    nth = f"({chunk.heals + 1} of {policy.heal_redrives_max})"
    if action is Action.SLOW_LANE and chunk.lane == MAIN_LANE:
        return Remedy(action, f"{died}: the slow lane tries it {nth}")
    return Remedy(Action.RETRY, f"{died}: it is tried again {nth}")


def action_of(policy: Policy) -> Action:
    """Return the action of a policy. Raises `DefinitionError` if it is none."""
    try:
        return Action(policy.heal_action)
    except ValueError as exc:
        allowed = ", ".join(Action)
        raise DefinitionError(f"heal_action is {policy.heal_action!r}: choose from {allowed}") from exc


class Healer:
    """Applies the remedies. Everyone may heal; each step is fenced, so that it happens once."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        send: MessageSender | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._ids = ids
        self._draw = draw
        # Without it, the messages are sent by the next maintenance pass.
        self._send = send
        # `heal` sends the messages of the halves with all others.
        self._bisector = Bisector(store, clock, ids, send=lambda fanout: fanout)
        self._reopener = Reopener(store, self.queries, ids)

    def heal(self, run_id: str, *, dry_run: bool = False) -> Healed:
        """Do for each dead chunk what the policy says, and return what that was.

        A chunk that cannot be helped, its input being gone, is left and named. A fan-out that is being cancelled, or
        whose policy makes no sense, is left alone, for whoever heals in passing has others to see to. Raises
        `NotFoundError` if there is no such fan-out, and `UserError` if it is another program's.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        round_ = _Round(self.queries.now_ms())
        try:
            check_reopenable(fanout)
            self._heal(fanout, policy_of(fanout), round_, dry_run=dry_run)
        except OutcomeUnknownError:
            raise
        except (ConflictError, DefinitionError) as exc:
            round_.said = str(exc)
        if self._send is not None and not dry_run:
            send_waiting(self.queries, run_id, self._send)
        counts = self.queries.counts(fanout)
        return round_.result(run_id, dead=counts.dead + counts.slow_dead, is_dry_run=dry_run)

    def _heal(self, fanout: Fanout, policy: Policy, round_: _Round, *, dry_run: bool) -> None:
        batch: list[tuple[Chunk, Remedy]] = []
        before = moment(round_.now_ms + 1)
        for chunk in self.queries.every_watched(fanout.run_id, Disposition.DEAD, before=before):
            found = remedy(chunk, policy)
            if found is None:
                round_.left += 1
            elif dry_run:
                round_.count(chunk, found)
            else:
                batch.append((chunk, found))
            if len(batch) >= BATCH:
                self._treat(fanout, batch, round_)
                batch = []
        self._treat(fanout, batch, round_)

    def _treat(self, fanout: Fanout, batch: Sequence[tuple[Chunk, Remedy]], round_: _Round) -> None:
        moves: list[tuple[ChunkChange, Remedy]] = []
        for chunk, found in batch:
            if found.action is Action.SPLIT:
                self._split(fanout, chunk, found, round_)
                continue
            try:
                moves.append((self._move(fanout, chunk, found, round_.now_ms), found))
            except NotFoundError as exc:
                round_.refuse(chunk, found, str(exc))
        refused = self._reopener.put_back(fanout, [change for change, _ in moves], Note("healed"))
        late = {one.change.after.sk for one in refused}
        round_.overtaken += len(late)
        for change, found in moves:
            if change.after.sk not in late:
                round_.count(change.after, found)

    def _split(self, fanout: Fanout, chunk: Chunk, found: Remedy, round_: _Round) -> None:
        try:
            self._bisector.cut(fanout, chunk, heals=1)
        except OutcomeUnknownError:
            raise
        except ConflictError:
            round_.overtaken += 1
        except UserError as exc:
            round_.refuse(chunk, found, str(exc))
        else:
            round_.count(chunk, found)

    def _move(self, fanout: Fanout, chunk: Chunk, found: Remedy, now_ms: int) -> ChunkChange:
        if found.action is Action.QUARANTINE:
            return moved_to(chunk, Disposition.QUARANTINED, now_ms=now_ms)
        check_input(chunk.input)
        policy = fanout.rules()
        # It has failed so many times in a row that it waits longer than before its last try, and longer each time.
        tries = policy.max_attempts + chunk.heals
        at_ms = now_ms + round(1000 * pause_seconds(policy, tries, self._draw()))
        is_waiting = fanout.queue_url is not None
        change = again(chunk, token=self._ids.ulid(), at_ms=at_ms, is_waiting=is_waiting, heals=1)
        if found.action is Action.SLOW_LANE:
            change = replace(change, after=slowed(change.after, policy))
        return change


def policy_of(fanout: Fanout) -> Policy:
    """Return the policy by which a fan-out is healed. Only workers of this machine have a slow lane to choose from."""
    policy = fanout.rules()
    if fanout.queue_url is not None and action_of(policy) is Action.SLOW_LANE:
        return replace(policy, heal_action=Action.RETRY.value)
    return policy


def slowed(chunk: Chunk, policy: Policy) -> Chunk:
    """Return a queued chunk as one that the workers of the slow lane take, with their limits, for a single try.

    It stays a chunk of the main lane and is counted there: only the queue it stands in is another. Whoever tries it
    again puts it back into its own queue, so that it has but one try before it is decided anew what to do.
    """
    queue_pk = queue(chunk.run_id, SLOW_LANE) if chunk.queue_pk is not None else None
    return replace(chunk, queue_pk=queue_pk, tried=chunk.attempt + 1 - policy.max_attempts)


class _Round:
    """Counts what a round of healing comes to while it goes on."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.healed = 0
        self.left = 0
        self.overtaken = 0
        self.said: str | None = None
        self._treated: list[Treated] = []
        self._refused: list[Treated] = []
        self._refused_count = 0

    def count(self, chunk: Chunk, found: Remedy) -> None:
        self.healed += 1
        if len(self._treated) < NAMED_MAX:
            self._treated.append(Treated(chunk.chunk_id, found.action, found.why))

    def refuse(self, chunk: Chunk, found: Remedy, reason: str) -> None:
        self._refused_count += 1
        if len(self._refused) < NAMED_MAX:
            self._refused.append(Treated(chunk.chunk_id, found.action, reason))

    def result(self, run_id: str, *, dead: int, is_dry_run: bool) -> Healed:
        seen = self.left + self._refused_count + (self.healed if is_dry_run else 0)
        return Healed(
            run_id=run_id,
            is_dry_run=is_dry_run,
            healed=self.healed,
            treated=tuple(self._treated),
            refused=tuple(self._refused),
            left=self.left,
            overtaken=self.overtaken,
            unseen=max(0, dead - seen),
            said=self.said,
        )


def _is_meant(chunk: Chunk, policy: Policy) -> bool:
    name = chunk.error_class or ""
    return not policy.heal_on or name in policy.heal_on or name.rpartition(".")[2] in policy.heal_on
