"""Probe API: list and show the probes of the project folder, and run one now. Probes cannot be defined here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from headgate.clock import Clock
from headgate.errors import InvalidPayloadError
from headgate.pipelines.catalog.cache import KnownPipelines
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.definitions import LoadedProbe
from headgate.pipelines.probes.model import Probe, ProbeResult, probe_key
from headgate.pipelines.probes.poller import periods_of
from headgate.pipelines.probes.results import ProbeResults, ProbeState
from headgate.pipelines.probes.runner import ProbeRunner, expectations
from headgate.pipelines.schedule.periods import Periods
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.pipelines.permissions import CONTROL, READ


class TryProbe(Struct, forbid_unknown_fields=True, kw_only=True):
    """The period to look at; by default the current one."""

    period: Annotated[str, Meta(max_length=40, examples=["2026-03-03"])] | None = None


class ProbeResultView(Struct, frozen=True, kw_only=True):
    """What a probe saw, when, and its verdict. `reason` is the comparison, or the error if it could not look."""

    period: str | None
    verdict: Verdict
    reason: str
    category: FailureCategory | None
    seen: dict[str, Any]
    at: str
    duration_ms: int


class ProbeView(Struct, frozen=True, kw_only=True):
    """A probe and its last results, latest period first."""

    id: str
    kind: str
    description: str
    owner: str
    every_seconds: float
    timeout_seconds: float
    period: str | None
    source: str
    results: list[ProbeResultView]
    looks: dict[str, int]
    last_seen_at: str | None
    next_at: str | None


class ProbeDetail(ProbeView, frozen=True, kw_only=True):
    """A probe with its definition, without secrets, and the pipelines that read it."""

    definition: dict[str, Any]
    expect: list[dict[str, Any]]
    readers: list[str]


class ProbeList(Struct, frozen=True):
    """All probes, by id."""

    probes: list[ProbeView]


def probe_operations(
    catalog: ProbeCatalog, results: ProbeResults, runner: ProbeRunner, known: KnownPipelines, clock: Clock
) -> list[Operation]:
    """Return the operations on probes."""
    return _Probes(catalog, results, runner, known, clock).operations()


class _Probes:
    def __init__(
        self, catalog: ProbeCatalog, results: ProbeResults, runner: ProbeRunner, known: KnownPipelines, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._results = results
        self._runner = runner
        self._known = known
        self._clock = clock

    def operations(self) -> list[Operation]:
        one = "/probes/{probe}"
        return [
            Operation("GET", "/probes", "List probes", self.ls, {200: ProbeList}, rule=READ),
            Operation("GET", one, "Show a probe", self.show, {200: ProbeDetail}, rule=READ),
            Operation(
                "POST", f"{one}/try", "Run a probe now without storing the result", self.try_probe,
                {200: ProbeResultView}, body=TryProbe, rule=CONTROL,
            ),
        ]  # fmt: skip

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        loaded = self._catalog.all()
        states = self._results.states([each.probe.id for each in loaded])
        return Answer(ProbeList([ProbeView(**_fields(each, states.get(each.probe.id))) for each in loaded]))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        loaded = self._catalog.get(call.path["probe"])
        state = self._results.states([loaded.probe.id]).get(loaded.probe.id)
        return Answer(
            ProbeDetail(
                **_fields(loaded, state),
                # Secrets are references, so that the definition has none.
                definition=to_builtins(loaded.probe, enc_hook=float),
                expect=[to_builtins(each) for each in expectations(loaded.probe)],
                readers=sorted(self._known.dependents(probe_key(loaded.probe.id))),
            )
        )

    def try_probe(self, call: Call[TryProbe, NoQuery]) -> Answer:
        probe = self._catalog.get(call.path["probe"]).probe
        return Answer(result_view(self._runner.run(probe, tried_period(probe, call.body.period, self._clock))))


def tried_period(probe: Probe, period: str | None, clock: Clock) -> str:
    """Return the period to look at. Raises `UserError` for one that the probe does not have."""
    if probe.period is None:
        if period is not None:
            raise InvalidPayloadError(f"probe {probe.id}: it has no periods; leave the period out")
        return ""
    return periods_of(probe, clock)[0] if period is None else Periods(probe.period, probe.timezone).check(period)


def result_view(result: ProbeResult) -> ProbeResultView:
    """Return a result for answers."""
    return ProbeResultView(
        period=result.period or None,
        verdict=result.verdict,
        reason=result.reason,
        category=result.category,
        seen=result.seen,
        at=_iso(result.at_ms),
        duration_ms=result.duration_ms,
    )


def _fields(loaded: LoadedProbe, state: ProbeState | None) -> dict[str, Any]:
    probe = loaded.probe
    results = () if state is None else state.results
    return {
        "id": probe.id,
        "kind": probe.kind,
        "description": probe.description,
        "owner": probe.owner,
        "every_seconds": float(probe.every),
        "timeout_seconds": float(probe.timeout),
        "period": None if probe.period is None else probe.period.value,
        "source": f"{loaded.source}:{loaded.line}",
        "results": [result_view(each) for each in results],
        "looks": {} if state is None else dict(state.counts),
        "last_seen_at": _iso(state.last_seen_at_ms) if state is not None and state.last_seen_at_ms else None,
        "next_at": None if state is None else _iso(state.due_at_ms),
    }


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
