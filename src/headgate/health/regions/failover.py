"""Failover: moves the writer to the other region, once, when a quorum of observers agrees that its region is down.

Pure functions decide on a small state, which the authority stores beside the lease. A failover sets a latch, which is
released only once the failed region has been healthy for a while: one outage causes one failover, however often it is
evaluated, and a failure of the second region as well is left to people. Traffic is moved by a callback; on Route 53
that means inverting a health check or an ARC routing control, because a disabled health check counts as healthy.
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
    """When to fail over: after `failures` failed probes in a row, ignoring reports older than `fresh_seconds`.

    `quorum` observers must agree. After a change of writer nothing moves for `cooldown_seconds`. The latch is released
    when the failed region has been healthy for `calm_seconds`.
    """

    observers: int = 3
    quorum: int = 2
    failures: int = 3
    fresh_seconds: float = 90.0
    cooldown_seconds: float = 600.0
    calm_seconds: float = 900.0
    lag_seconds_max: float = 5.0


class ProbeReport(msgspec.Struct, frozen=True):
    """One observer's report on one region: the failed probes in a row, and the times of the last and the first."""

    failures: int
    at_ms: int
    # Of the first failed probe in a row; 0 without one.
    failing_since_ms: int = 0


class ReplicationReport(msgspec.Struct, frozen=True):
    """How far a region has received the writes of the writer: the writer's newest pulse there, and when it was read."""

    writer: str
    pulse_at_ms: int
    at_ms: int


# By region, then by observer.
Reports = Mapping[str, Mapping[str, ProbeReport]]


class RegionVerdict(enum.StrEnum):
    """The verdict of all observers on a region. UNSURE: too few recent reports, or no agreement."""

    UP = "UP"
    DOWN = "DOWN"
    UNSURE = "UNSURE"


class FailoverPhase(enum.StrEnum):
    """The phase of a failover."""

    STEADY = "STEADY"
    MOVING = "MOVING"


class FailoverMove(enum.StrEnum):
    """Why the writer moves."""

    FAILOVER = "FAILOVER"
    FAILBACK = "FAILBACK"


class FailoverState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of failover."""

    home: str
    active: str
    phase: FailoverPhase = FailoverPhase.STEADY
    move: FailoverMove | None = None
    target: str | None = None
    # The region whose outage caused the last failover, until it has been healthy for long enough.
    latched_for: str | None = None
    well_since_ms: int | None = None
    moved_at_ms: int | None = None
    failovers: int = 0
    # Of the last failover: when its outage began, and the newest pulse of the failed writer that had been replicated.
    outage_at_ms: int | None = None
    replicated_at_ms: int | None = None
    # How long that failover took, from the first failed probe on.
    recovery_ms: int | None = None
    version: int = 0

    @property
    def lost_ms(self) -> int | None:
        """The length of the last writes of a failed region that may be lost: the recovery point of the failover."""
        if self.outage_at_ms is None or self.replicated_at_ms is None:
            return None
        return max(0, self.outage_at_ms - self.replicated_at_ms)


class FailoverDecision(msgspec.Struct, frozen=True):
    """The next state, the region that is to become the writer if any, and the reason."""

    state: FailoverState
    move_to: str | None
    reason: str


def verdict(reports: Mapping[str, ProbeReport], policy: FailoverPolicy, now_ms: int) -> RegionVerdict:
    """Return the verdict of the observers of one region."""
    fresh = [report for report in reports.values() if now_ms - report.at_ms <= 1000 * policy.fresh_seconds]
    if sum(report.failures >= policy.failures for report in fresh) >= policy.quorum:
        return RegionVerdict.DOWN
    return RegionVerdict.UP if sum(report.failures == 0 for report in fresh) >= policy.quorum else RegionVerdict.UNSURE


def decide(
    state: FailoverState, reports: Reports, standby: str, policy: FailoverPolicy, now_ms: int
) -> FailoverDecision:
    """Return the decision from the reports. `standby` is the region that could become the writer."""
    if state.phase is FailoverPhase.MOVING:
        assert state.target is not None
        return FailoverDecision(state, state.target, f"continuing the move to {state.target}")
    state = _calmed(state, reports, policy, now_ms)
    found = verdict(reports.get(state.active, {}), policy, now_ms)
    if found is not RegionVerdict.DOWN:
        return FailoverDecision(state, None, f"{state.active} is {found}")
    if state.latched_for is not None:
        return FailoverDecision(
            state, None, f"{state.active} is DOWN, but {state.latched_for} has not recovered yet: a person must decide"
        )
    if _is_cooling(state, policy, now_ms):
        return FailoverDecision(state, None, f"{state.active} is DOWN, but the writer has just moved")
    other = verdict(reports.get(standby, {}), policy, now_ms)
    if other is not RegionVerdict.UP:
        return FailoverDecision(state, None, f"{state.active} is DOWN, and {standby} is {other}: no region to move to")
    moving = msgspec.structs.replace(
        state,
        phase=FailoverPhase.MOVING,
        move=FailoverMove.FAILOVER,
        target=standby,
        outage_at_ms=_outage_at_ms(reports.get(state.active, {}), policy, now_ms),
        replicated_at_ms=None,
        recovery_ms=None,
    )
    return FailoverDecision(moving, standby, f"{state.active} is DOWN by {policy.quorum} observers, {standby} is UP")


def _outage_at_ms(reports: Mapping[str, ProbeReport], policy: FailoverPolicy, now_ms: int) -> int:
    """Return when the first probe failed of the observers that find a region down."""
    down = [report for report in reports.values() if report.failures >= policy.failures]
    return min((report.failing_since_ms or report.at_ms for report in down), default=now_ms)


def decide_failback(
    state: FailoverState, reports: Reports, policy: FailoverPolicy, now_ms: int, lag_seconds: float
) -> FailoverDecision:
    """Return the decision to fail back to the home region, on request of a person.

    Raises `IllegalTransitionError` with the unmet preconditions.
    """
    state = _calmed(state, reports, policy, now_ms)
    missing = [
        reason
        for is_missing, reason in (
            (state.phase is not FailoverPhase.STEADY, f"a move to {state.target} is in progress"),
            (state.active == state.home, f"{state.home} is the writer already"),
            (verdict(reports.get(state.home, {}), policy, now_ms) is not RegionVerdict.UP, f"{state.home} is not UP"),
            (state.latched_for is not None, f"{state.latched_for} was not healthy for {policy.calm_seconds:g} s"),
            (_is_cooling(state, policy, now_ms), "the writer has just moved"),
            (lag_seconds > policy.lag_seconds_max, f"{state.home} is {lag_seconds:g} s behind"),
        )
        if is_missing
    ]
    if missing:
        raise IllegalTransitionError(f"failback to {state.home}: {'; '.join(missing)}; try again later")
    moving = msgspec.structs.replace(state, phase=FailoverPhase.MOVING, move=FailoverMove.FAILBACK, target=state.home)
    return FailoverDecision(moving, state.home, f"{state.home} is UP and has caught up")


def arrived(state: FailoverState, now_ms: int) -> FailoverState:
    """Return the state once the target is the writer."""
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
        recovery_ms=now_ms - state.outage_at_ms if is_failover and state.outage_at_ms else state.recovery_ms,
    )


def _calmed(state: FailoverState, reports: Reports, policy: FailoverPolicy, now_ms: int) -> FailoverState:
    """Release the latch once the failed region has been healthy for long enough without interruption."""
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
    """Renews a region's lease while the region is the writer, and releases it when the writer is to move."""

    def __init__(self, authority: Store, lease: WriterLease, fence: Fence, region: str, home: str) -> None:
        self._authority = authority
        self._lease = lease
        self._fence = fence
        self._region = region
        self._home = home
        self._held: Lease | None = None

    def keep(self) -> bool:
        """Renew or release the lease as the state requires, and return whether this region writes.

        Call it several times during a lease. Raises what the authority raises; the fence then closes by itself when the
        lease ends.
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
    """Return the stored state; initially, the home region is the writer."""
    row = authority.get(CONTROL, _STATE_KEY, consistent=True)
    if row is None:
        return FailoverState(home=home, active=home)
    return typed_decode.convert({name: row[name] for name in row if name not in CONTROL.key_names}, FailoverState)


class Failover:
    """Evaluates the reports and moves the writer. Any number may run: the authority lets one act.

    `move_traffic` is called with the new writer once that has the lease, and again after a crash: it must be
    idempotent. `on_moved` is called with the new state once the move is done.
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
        on_moved: Callable[[FailoverState], None] = lambda _state: None,
    ) -> None:
        """Take the two regions, home first."""
        self._authority = authority
        self._clock = clock
        self._lease = lease
        self._regions = regions
        self._policy = policy or FailoverPolicy()
        self._move_traffic = move_traffic
        self._on_moved = on_moved

    def state(self) -> FailoverState:
        """Return the stored state."""
        return read_state(self._authority, self._regions[0])

    def evaluate(
        self, reports: Reports, replication: Mapping[str, ReplicationReport] | None = None
    ) -> FailoverDecision:
        """Evaluate the reports and act on them. Call it about every half minute.

        `replication` is how far each region has received the other's writes.
        """
        state = self.state()
        decision = decide(state, reports, self._other(state.active), self._policy, self._now_ms())
        received = None if decision.move_to is None else (replication or {}).get(decision.move_to)
        if received is not None and decision.state.replicated_at_ms is None:
            moving = msgspec.structs.replace(decision.state, replicated_at_ms=received.pulse_at_ms)
            decision = FailoverDecision(moving, decision.move_to, decision.reason)
        return self._do(state, decision)

    def fail_back(self, reports: Reports, lag_seconds: float) -> FailoverDecision:
        """Move the writer back to the home region. Raises `IllegalTransitionError` if that is not allowed yet."""
        state = self.state()
        return self._do(state, decide_failback(state, reports, self._policy, self._now_ms(), lag_seconds))

    def drill(self, reports: Reports) -> FailoverDecision:
        """Return the decision if the writer's region were down now, without acting on it."""
        state = self.state()
        now_ms = self._now_ms()
        down = ProbeReport(self._policy.failures, now_ms, now_ms)
        pretended = {**reports, state.active: {str(number): down for number in range(self._policy.observers)}}
        return decide(state, pretended, self._other(state.active), self._policy, now_ms)

    def recovery_seconds_max(self, probe_seconds: float) -> float:
        """Return how long a failover takes at most after an outage began, without the command that moves traffic.

        The probes must fail as often as the policy says, the lease must expire, and the next evaluation acts.
        """
        return self._policy.failures * probe_seconds + self._lease.lease_seconds + probe_seconds

    def _do(self, before: FailoverState, decision: FailoverDecision) -> FailoverDecision:
        """Persist the intent, then act. After a crash, the next evaluation finishes the move."""
        state = decision.state
        if state != before:
            saved = self._save(state)
            if saved is None:
                return FailoverDecision(before, None, "another process is moving the writer")
            state = saved
        if decision.move_to is None:
            return FailoverDecision(state, None, decision.reason)
        try:
            self._lease.hold(decision.move_to)
        except StoreBusyError as exc:
            return FailoverDecision(state, None, f"the old lease has not expired yet: {exc}")
        self._move_traffic(decision.move_to)
        after = self._save(arrived(state, self._now_ms()))
        if after is None:
            return FailoverDecision(state, None, "another process has finished the move")
        self._on_moved(after)
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
