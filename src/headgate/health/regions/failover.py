"""Failover: when a quorum of observers agrees that the writer's region is down, another one takes over, once.

What is to be done is decided by pure functions on a small state, which is kept in the authority beside the lease. A
latch is set with each failover and released only once the failed region has been well for a while: an outage causes
one failover, however often it is looked at, and a second region that fails too is a matter for people. Traffic is moved
by whoever carries out an order; on Route 53 that means inverting a health check or an ARC routing control, because a
health check that is disabled counts as healthy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, IllegalTransitionError, StoreBusyError
from headgate.health.regions.regions import Fence, Lease, WriterLease
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.schema import Key
from headgate.store.port import Store

_STATE_KEY: Final = Key("REGION#FAILOVER", "STATE")


class FailoverPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to fail over. A report older than `fresh_seconds` says nothing; an outage is `failures` of them in a row.

    `quorum` observers must agree. After a change of writer nothing moves for `cooldown_seconds`. The latch is released
    when the failed region has been well for `calm_seconds`.
    """

    observers: int = 3
    quorum: int = 2
    failures: int = 3
    fresh_seconds: float = 90.0
    cooldown_seconds: float = 600.0
    calm_seconds: float = 900.0
    lag_seconds_max: float = 5.0


class ProbeReport(msgspec.Struct, frozen=True):
    """What one observer says of one region: how many checks in a row have failed, and when it last looked."""

    failures: int
    at_ms: int


# By region, then by observer.
Reports = Mapping[str, Mapping[str, ProbeReport]]


class RegionVerdict(enum.StrEnum):
    """What the observers together say of a region. UNSURE: too few of them said anything lately, or they differ."""

    UP = "UP"
    DOWN = "DOWN"
    UNSURE = "UNSURE"


class FailoverPhase(enum.StrEnum):
    """Where a failover stands."""

    STEADY = "STEADY"
    MOVING = "MOVING"


class FailoverMove(enum.StrEnum):
    """Why the writer moves."""

    FAILOVER = "FAILOVER"
    FAILBACK = "FAILBACK"


class FailoverState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered between looks."""

    home: str
    active: str
    phase: FailoverPhase = FailoverPhase.STEADY
    move: FailoverMove | None = None
    target: str | None = None
    # The region whose outage caused the last failover, until it has been well for long enough.
    latched_for: str | None = None
    well_since_ms: int | None = None
    moved_at_ms: int | None = None
    failovers: int = 0
    version: int = 0


class FailoverDecision(msgspec.Struct, frozen=True):
    """What to remember, which region is to become the writer if any, and why or why not."""

    state: FailoverState
    move_to: str | None
    reason: str


def verdict(reports: Mapping[str, ProbeReport], policy: FailoverPolicy, now_ms: int) -> RegionVerdict:
    """Return what the observers of one region say together."""
    fresh = [report for report in reports.values() if now_ms - report.at_ms <= 1000 * policy.fresh_seconds]
    if sum(report.failures >= policy.failures for report in fresh) >= policy.quorum:
        return RegionVerdict.DOWN
    return RegionVerdict.UP if sum(report.failures == 0 for report in fresh) >= policy.quorum else RegionVerdict.UNSURE


def decide(
    state: FailoverState, reports: Reports, standby: str, policy: FailoverPolicy, now_ms: int
) -> FailoverDecision:
    """Return what is to be done, from what the observers say. `standby` is the region that could take over."""
    if state.phase is FailoverPhase.MOVING:
        assert state.target is not None
        return FailoverDecision(state, state.target, f"the move to {state.target} was begun and is carried on")
    state = _calmed(state, reports, policy, now_ms)
    found = verdict(reports.get(state.active, {}), policy, now_ms)
    if found is not RegionVerdict.DOWN:
        return FailoverDecision(state, None, f"{state.active} is {found}")
    if state.latched_for is not None:
        return FailoverDecision(
            state, None, f"{state.active} is DOWN, but so was {state.latched_for}, and it is not well yet: call someone"
        )
    if _is_cooling(state, policy, now_ms):
        return FailoverDecision(state, None, f"{state.active} is DOWN, but the writer has moved a moment ago")
    other = verdict(reports.get(standby, {}), policy, now_ms)
    if other is not RegionVerdict.UP:
        return FailoverDecision(
            state, None, f"{state.active} is DOWN, and {standby} is {other}: there is nowhere to go"
        )
    moving = msgspec.structs.replace(state, phase=FailoverPhase.MOVING, move=FailoverMove.FAILOVER, target=standby)
    return FailoverDecision(moving, standby, f"{state.active} is DOWN by {policy.quorum} observers, {standby} is UP")


def decide_failback(
    state: FailoverState, reports: Reports, policy: FailoverPolicy, now_ms: int, lag_seconds: float
) -> FailoverDecision:
    """Return whether the writer may go home now. Only people ask for this.

    Raises `IllegalTransitionError`, with what is missing, if it may not.
    """
    state = _calmed(state, reports, policy, now_ms)
    missing = [
        said
        for is_missing, said in (
            (state.phase is not FailoverPhase.STEADY, f"a move to {state.target} is under way"),
            (state.active == state.home, f"{state.home} is the writer already"),
            (verdict(reports.get(state.home, {}), policy, now_ms) is not RegionVerdict.UP, f"{state.home} is not UP"),
            (state.latched_for is not None, f"{state.latched_for} has not been well for {policy.calm_seconds:g} s"),
            (_is_cooling(state, policy, now_ms), "the writer has moved a moment ago"),
            (lag_seconds > policy.lag_seconds_max, f"{state.home} is {lag_seconds:g} s behind"),
        )
        if is_missing
    ]
    if missing:
        raise IllegalTransitionError(f"failback to {state.home}: {'; '.join(missing)}; try again later")
    moving = msgspec.structs.replace(state, phase=FailoverPhase.MOVING, move=FailoverMove.FAILBACK, target=state.home)
    return FailoverDecision(moving, state.home, f"{state.home} is UP and has caught up")


def arrived(state: FailoverState, now_ms: int) -> FailoverState:
    """Return the state once the target writes."""
    assert state.target is not None
    is_failover = state.move is FailoverMove.FAILOVER
    return msgspec.structs.replace(
        state,
        active=state.target,
        phase=FailoverPhase.STEADY,
        move=None,
        target=None,
        latched_for=state.active if is_failover else None,
        well_since_ms=None,
        moved_at_ms=now_ms,
        failovers=state.failovers + is_failover,
    )


def _calmed(state: FailoverState, reports: Reports, policy: FailoverPolicy, now_ms: int) -> FailoverState:
    """Release the latch once the failed region has been well for long enough without a break."""
    if state.latched_for is None:
        return state
    if verdict(reports.get(state.latched_for, {}), policy, now_ms) is not RegionVerdict.UP:
        return msgspec.structs.replace(state, well_since_ms=None)
    since_ms = now_ms if state.well_since_ms is None else state.well_since_ms
    if now_ms - since_ms >= 1000 * policy.calm_seconds:
        return msgspec.structs.replace(state, latched_for=None, well_since_ms=None)
    return msgspec.structs.replace(state, well_since_ms=since_ms)


def _is_cooling(state: FailoverState, policy: FailoverPolicy, now_ms: int) -> bool:
    return state.moved_at_ms is not None and now_ms - state.moved_at_ms < 1000 * policy.cooldown_seconds


class LeaseKeeper:
    """Keeps a region's lease while it is to be the writer, and gives it up when the writer is to move."""

    def __init__(self, authority: Store, lease: WriterLease, fence: Fence, region: str, home: str) -> None:
        self._authority = authority
        self._lease = lease
        self._fence = fence
        self._region = region
        self._home = home
        self._held: Lease | None = None

    def keep(self) -> bool:
        """Do what the state asks of this region, and return whether it writes. To be called several times a lease.

        Raises what the authority raises if it cannot be asked; the fence then closes by itself when the lease ends.
        """
        state = read_state(self._authority, self._home)
        if state.phase is not FailoverPhase.STEADY or state.active != self._region:
            self._fence.leave()
            if self._held is not None:
                self._lease.release(self._held)
                self._held = None
            return False
        try:
            self._held = self._lease.hold(self._region)
            self._fence.enter(self._held)
        except StoreBusyError:
            self._fence.leave()
            self._held = None
        return self._fence.is_open()


def read_state(authority: Store, home: str) -> FailoverState:
    """Return what is remembered; at first, that the home region writes."""
    row = authority.get(CONTROL, _STATE_KEY, consistent=True)
    if row is None:
        return FailoverState(home=home, active=home)
    return typed_decode.convert({name: row[name] for name in row if name not in CONTROL.key_names}, FailoverState)


class Failover:
    """Looks at the reports, and moves the writer. Any number of these may run: the authority lets one act.

    `move_traffic` is called with the new writer after it has the lease, and again if the process died meanwhile: it
    must be idempotent. `tell` is called once the move is done, with the state after it.
    """

    def __init__(
        self,
        authority: Store,
        clock: Clock,
        lease: WriterLease,
        *,
        regions: tuple[str, str],
        policy: FailoverPolicy | None = None,
        move_traffic: Callable[[str], None],
        tell: Callable[[FailoverState], None] = lambda _state: None,
    ) -> None:
        """Take the two regions, home first."""
        self._authority = authority
        self._clock = clock
        self._lease = lease
        self._regions = regions
        self._policy = policy or FailoverPolicy()
        self._move_traffic = move_traffic
        self._tell = tell

    def state(self) -> FailoverState:
        """Return what is remembered."""
        return read_state(self._authority, self._regions[0])

    def look(self, reports: Reports) -> FailoverDecision:
        """Decide on the reports and do it. To be called every half minute or so."""
        state = self.state()
        return self._do(state, decide(state, reports, self._other(state.active), self._policy, self._now_ms()))

    def fail_back(self, reports: Reports, lag_seconds: float) -> FailoverDecision:
        """Let the home region write again. Raises `IllegalTransitionError` if it may not yet."""
        state = self.state()
        return self._do(state, decide_failback(state, reports, self._policy, self._now_ms(), lag_seconds))

    def drill(self, reports: Reports) -> FailoverDecision:
        """Return what would be done if the writer's region were down now. Nothing is."""
        state = self.state()
        now_ms = self._now_ms()
        down = ProbeReport(self._policy.failures, now_ms)
        pretended = {**reports, state.active: {str(number): down for number in range(self._policy.observers)}}
        return decide(state, pretended, self._other(state.active), self._policy, now_ms)

    def _do(self, before: FailoverState, decision: FailoverDecision) -> FailoverDecision:
        """Persist the intent, then act. What was begun by whoever died is finished by the next one who looks."""
        state = decision.state
        if state != before:
            saved = self._save(state)
            if saved is None:
                return FailoverDecision(before, None, "another one is at it")
            state = saved
        if decision.move_to is None:
            return FailoverDecision(state, None, decision.reason)
        try:
            self._lease.hold(decision.move_to)
        except StoreBusyError as exc:
            return FailoverDecision(state, None, f"the old lease is still to run out: {exc}")
        self._move_traffic(decision.move_to)
        after = self._save(arrived(state, self._now_ms()))
        if after is None:
            return FailoverDecision(state, None, "another one has finished it")
        self._tell(after)
        return FailoverDecision(after, decision.move_to, decision.reason)

    def _save(self, state: FailoverState) -> FailoverState | None:
        following = msgspec.structs.replace(state, version=state.version + 1)
        row = {**CONTROL.key_attributes(_STATE_KEY), **msgspec.to_builtins(following)}
        condition: Condition = absent() if state.version == 0 else version_is(state.version)
        try:
            self._authority.put(CONTROL, row, condition=condition)
        except ConflictError:
            return None
        return following

    def _other(self, region: str) -> str:
        return self._regions[1] if region == self._regions[0] else self._regions[0]

    def _now_ms(self) -> int:
        return round(1000 * self._clock.seconds())
