"""Auto-heal: applies a fan-out's heal policy to its dead chunks."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import move_change, retry_delay_seconds
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, Policy, queue_partition, timestamp
from headgate.fanout.model.sources import check_input
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.reopen import AuditNote, Reopener, check_reopenable, reopen_change, send_waiting
from headgate.ids import IdMaker
from headgate.store.port import Store

BATCH: Final = 500
# Chunk ids listed in a report; its counts cover all.
NAMED_MAX: Final = 1000


class HealAction(enum.StrEnum):
    """What the heal policy can do about a dead chunk."""

    RETRY = "retry"  # Queue it again with all its attempts, after a backoff.
    SLOW_LANE = "slow-lane"  # One more attempt by a slow-lane worker, with the longer time-out.
    SPLIT = "split"  # Split it in two, until the bad item is found.
    QUARANTINE = "quarantine"  # Set it aside, out of later redrives of dead chunks.


class HealDecision(Struct, frozen=True):
    """The action for a chunk, and its reason."""

    action: HealAction
    reason: str


class HealStep(Struct, frozen=True):
    """A chunk with its action; in `refused`, `reason` says why the action failed."""

    chunk_id: str
    action: HealAction
    reason: str = field(name="said")


class HealReport(Struct, frozen=True):
    """The result of a heal, or of its dry run. `treated` and `refused` list the first chunks; `healed` counts all."""

    run_id: str
    is_dry_run: bool
    healed: int = 0
    treated: tuple[HealStep, ...] = ()
    refused: tuple[HealStep, ...] = ()
    # Dead chunks that the policy does not cover.
    left: int = 0
    overtaken: int = 0
    # Dead chunks that are counted but not listed: the index lags, or they have just died. Heal again before concluding
    # that nothing is left.
    unseen: int = 0
    # Why nothing was healed: the fan-out is being cancelled, or its policy is invalid.
    skipped_reason: str | None = field(name="said", default=None)


def heal_decision(chunk: Chunk, policy: Policy) -> HealDecision | None:
    """Return the policy's action for a chunk, or None. Raises `DefinitionError` for an unknown action.

    Splitting terminates by itself; every other action is applied to a chunk at most `heal_redrives_max` times. A chunk
    that is to be split until its failing item is alone needs no policy.
    """
    action = heal_action_of(policy)
    if chunk.disposition is not Disposition.DEAD:
        return None
    died = f"it died of {chunk.error_class or 'an unknown error'}"
    if chunk.is_isolating and chunk.lane == MAIN_LANE and chunk.rerun_items is None:
        return _split_decision(chunk, died)
    if policy.heal_redrives_max <= 0 or not _is_covered(chunk, policy):
        return None
    if action is HealAction.QUARANTINE:
        return HealDecision(action, f"{died}: it is quarantined")
    if action is HealAction.SPLIT and chunk.lane == MAIN_LANE:
        return _split_decision(chunk, died)
    if chunk.heals >= policy.heal_redrives_max:
        return None
    nth = f"({chunk.heals + 1} of {policy.heal_redrives_max})"
    if action is HealAction.SLOW_LANE and chunk.lane == MAIN_LANE:
        return HealDecision(action, f"{died}: the slow lane runs it {nth}")
    return HealDecision(HealAction.RETRY, f"{died}: it is retried {nth}")


def _split_decision(chunk: Chunk, died: str) -> HealDecision:
    if chunk.items > 1:
        return HealDecision(HealAction.SPLIT, f"{died}: its {chunk.items} items are split in two, and both halves run")
    return HealDecision(HealAction.SPLIT, f"{died}: item {chunk.start} is the one that fails, and is quarantined")


def heal_action_of(policy: Policy) -> HealAction:
    """Return the action of a policy. Raises `DefinitionError` if it is unknown."""
    try:
        return HealAction(policy.heal_action)
    except ValueError as exc:
        allowed = ", ".join(HealAction)
        raise DefinitionError(f"heal_action is {policy.heal_action!r}: choose from {allowed}") from exc


class Healer:
    """Applies heal policies. Safe to run in several processes: each step is fenced and happens once."""

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

    def heal(self, run_id: str, *, dry_run: bool = False) -> HealReport:
        """Apply the policy to each dead chunk, and return the result.

        A chunk whose input is missing is refused and listed. A fan-out that is being cancelled or has an invalid policy
        is skipped, so that maintenance goes on with others. Raises `NotFoundError`, and `UserError` for a fan-out of
        another program.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        tally = _HealTally(self.queries.now_ms())
        try:
            check_reopenable(fanout)
            self._heal(fanout, heal_policy_of(fanout), tally, dry_run=dry_run)
        except OutcomeUnknownError:
            raise
        except (ConflictError, DefinitionError) as exc:
            tally.skipped_reason = str(exc)
        if self._send is not None and not dry_run:
            send_waiting(self.queries, run_id, self._send)
        counts = self.queries.counts(fanout)
        return tally.result(run_id, dead=counts.dead + counts.slow_dead, is_dry_run=dry_run)

    def _heal(self, fanout: Fanout, policy: Policy, tally: _HealTally, *, dry_run: bool) -> None:
        batch: list[tuple[Chunk, HealDecision]] = []
        before = timestamp(tally.now_ms + 1)
        for chunk in self.queries.every_in_disposition(fanout.run_id, Disposition.DEAD, before=before):
            decision = heal_decision(chunk, policy)
            if decision is None:
                tally.left += 1
            elif dry_run:
                tally.count(chunk, decision)
            else:
                batch.append((chunk, decision))
            if len(batch) >= BATCH:
                self._treat(fanout, batch, tally)
                batch = []
        self._treat(fanout, batch, tally)

    def _treat(self, fanout: Fanout, batch: Sequence[tuple[Chunk, HealDecision]], tally: _HealTally) -> None:
        moves: list[tuple[ChunkChange, HealDecision]] = []
        for chunk, decision in batch:
            if decision.action is HealAction.SPLIT:
                self._split(fanout, chunk, decision, tally)
                continue
            try:
                moves.append((self._move(fanout, chunk, decision, tally.now_ms), decision))
            except NotFoundError as exc:
                tally.refuse(chunk, decision, str(exc))
        refused = self._reopener.put_back(fanout, [change for change, _ in moves], AuditNote("healed"))
        late = {one.change.after.sk for one in refused}
        tally.overtaken += len(late)
        for change, decision in moves:
            if change.after.sk not in late:
                tally.count(change.after, decision)

    def _split(self, fanout: Fanout, chunk: Chunk, decision: HealDecision, tally: _HealTally) -> None:
        try:
            self._bisector.cut(fanout, chunk, heals=1)
        except OutcomeUnknownError:
            raise
        except ConflictError:
            tally.overtaken += 1
        except UserError as exc:
            tally.refuse(chunk, decision, str(exc))
        else:
            tally.count(chunk, decision)

    def _move(self, fanout: Fanout, chunk: Chunk, decision: HealDecision, now_ms: int) -> ChunkChange:
        if decision.action is HealAction.QUARANTINE:
            return move_change(chunk, Disposition.QUARANTINED, now_ms=now_ms)
        check_input(chunk.input)
        policy = fanout.rules()
        # The backoff continues after that of the last attempt, and grows with each heal.
        tries = policy.max_attempts + chunk.heals
        at_ms = now_ms + round(1000 * retry_delay_seconds(policy, tries, self._draw()))
        is_waiting = fanout.queue_url is not None
        change = reopen_change(chunk, token=self._ids.ulid(), at_ms=at_ms, is_waiting=is_waiting, heals=1)
        if decision.action is HealAction.SLOW_LANE:
            change = replace(change, after=moved_to_slow_lane(change.after, policy))
        return change


def heal_policy_of(fanout: Fanout) -> Policy:
    """Return the heal policy. A fan-out with a queue has no slow lane, so that `slow-lane` becomes `retry`."""
    policy = fanout.rules()
    if fanout.queue_url is not None and heal_action_of(policy) is HealAction.SLOW_LANE:
        return replace(policy, heal_action=HealAction.RETRY.value)
    return policy


def moved_to_slow_lane(chunk: Chunk, policy: Policy) -> Chunk:
    """Return a queued chunk placed in the slow lane's queue, with one attempt left.

    It stays a chunk of the main lane and is counted there; only its queue differs. A later retry puts it back into the
    main queue, so that it runs once in the slow lane before the policy is applied again.
    """
    queue_pk = queue_partition(chunk.run_id, SLOW_LANE) if chunk.queue_pk is not None else None
    return replace(chunk, queue_pk=queue_pk, tried=chunk.attempt + 1 - policy.max_attempts)


class _HealTally:
    """Accumulates the result of a heal."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.healed = 0
        self.left = 0
        self.overtaken = 0
        self.skipped_reason: str | None = None
        self._treated: list[HealStep] = []
        self._refused: list[HealStep] = []
        self._refused_count = 0

    def count(self, chunk: Chunk, decision: HealDecision) -> None:
        self.healed += 1
        if len(self._treated) < NAMED_MAX:
            self._treated.append(HealStep(chunk.chunk_id, decision.action, decision.reason))

    def refuse(self, chunk: Chunk, decision: HealDecision, reason: str) -> None:
        self._refused_count += 1
        if len(self._refused) < NAMED_MAX:
            self._refused.append(HealStep(chunk.chunk_id, decision.action, reason))

    def result(self, run_id: str, *, dead: int, is_dry_run: bool) -> HealReport:
        seen = self.left + self._refused_count + (self.healed if is_dry_run else 0)
        return HealReport(
            run_id=run_id,
            is_dry_run=is_dry_run,
            healed=self.healed,
            treated=tuple(self._treated),
            refused=tuple(self._refused),
            left=self.left,
            overtaken=self.overtaken,
            unseen=max(0, dead - seen),
            skipped_reason=self.skipped_reason,
        )


def _is_covered(chunk: Chunk, policy: Policy) -> bool:
    name = chunk.error_class or ""
    return not policy.heal_on or name in policy.heal_on or name.rpartition(".")[2] in policy.heal_on
