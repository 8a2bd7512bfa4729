"""The poller of probes: one look an interval for all pipelines, one process at a time, and readers that wake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule, SensorTrigger, Trait
from headgate.pipelines.enums import TraitStatus, Verdict
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.definitions import LoadedProbe, LoadedProbes
from headgate.pipelines.probes.model import Expectation, Probe, ProbeResult
from headgate.pipelines.probes.poller import ProbePoller
from headgate.pipelines.probes.results import ProbeResults
from headgate.pipelines.traits.probe_reference import ProbeEvaluator
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of
from tests.probe_rig import probe, runner
from tests.unit.pipelines.evaluator_rig import question

SLOT = slot_of()


class Watched:
    """A poller on the rig's store and clock, with everything it saw."""

    def __init__(self, rig: Rig, root: Path, *probes: Probe, name: str = "one") -> None:
        self.rig = rig
        self.seen: list[tuple[str, ProbeResult]] = []
        self.catalog = ProbeCatalog()
        self.set(*probes)
        self.results = ProbeResults(rig.store, rig.env.clock, rig.pipelines.sensors)
        self.runner = runner(root, clock=rig.env.clock)
        self.poller = ProbePoller(
            rig.env.clock, self.catalog, self.runner, self.results, name=name,
            observe=lambda probe, result: self.seen.append((probe.id, result)),
        )  # fmt: skip

    def set(self, *probes: Probe) -> None:
        self.catalog.replace(
            LoadedProbes(probes=tuple(LoadedProbe(probe=each, source="probes/a.yaml", line=1) for each in probes))
        )

    @property
    def counts(self) -> Counter[str]:
        return Counter(name for name, _ in self.seen)


def advance(rig: Rig, seconds: int, *pollers: ProbePoller, submit: Callable[[Any], object] | None = None) -> None:
    """Let time pass second by second, with every poller at work."""
    for _ in range(seconds):
        for poller in pollers:
            poller.tick(*([] if submit is None else [submit]))
        rig.pump()
        rig.advance("1s")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        yield opened


def files(name: str = "landed", path: str = "in/*", **fields: Any) -> Probe:
    return probe(id=name, files={"path": path}, every="10s", **fields)


def reading(*names: str, pipeline_id: str = "silver", **fields: Any) -> Pipeline:
    """Return a pipeline whose runs wait for probes."""
    rules = tuple(Rule(key=f"probe:{name}") for name in names)
    return pipeline(pipeline_id, readiness=Readiness(rules=rules), **fields)


def land(root: Path, name: str = "in/a") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")


def test_poll__many_readers__one_look_an_interval(rig: Rig, tmp_path: Path) -> None:
    names = [f"landed-{number}" for number in range(5)]
    watched = Watched(rig, tmp_path, *(files(name) for name in names))
    rig.define(*(reading(names[number % 5], pipeline_id=f"reader-{number:02}") for number in range(30)))
    advance(rig, 10, watched.poller)
    watched.seen.clear()
    advance(rig, 30, watched.poller)
    assert watched.counts == dict.fromkeys(names, 3)


def test_poll__two_processes__share_the_looks(rig: Rig, tmp_path: Path) -> None:
    names = [f"landed-{number}" for number in range(4)]
    one, two = (Watched(rig, tmp_path, *(files(name) for name in names), name=name) for name in ("one", "two"))
    advance(rig, 10, one.poller, two.poller)
    one.seen.clear()
    two.seen.clear()
    advance(rig, 30, one.poller, two.poller)
    assert one.counts + two.counts == dict.fromkeys(names, 3)


def test_poll__process_dies_during_a_look__another_looks_after_the_lease(rig: Rig, tmp_path: Path) -> None:
    dead, alive = Watched(rig, tmp_path, files()), Watched(rig, tmp_path, files(), name="two")
    # The work is claimed and never done.
    advance(rig, 4, dead.poller, submit=lambda _work: None)
    assert alive.results.get("landed").claimed_by == "one"
    advance(rig, 20, alive.poller)
    assert not alive.seen
    advance(rig, 60, alive.poller)
    assert alive.counts["landed"] >= 2


def test_record__claim_was_taken_over__the_late_result_is_dropped(rig: Rig, tmp_path: Path) -> None:
    watched = Watched(rig, tmp_path, files())
    late: list[Callable[[], None]] = []
    advance(rig, 4, watched.poller, submit=late.append)
    assert len(late) == 1
    other = Watched(rig, tmp_path, files(), name="two")
    advance(rig, 80, other.poller)
    before = other.results.get("landed")
    late[0]()
    assert other.results.get("landed") == before
    assert not watched.seen


def test_rule__file_arrives__the_waiting_run_starts_its_job(rig: Rig, tmp_path: Path) -> None:
    watched = Watched(rig, tmp_path, files())
    rig.define(reading("landed"))
    rig.mark(SLOT)
    advance(rig, 25, watched.poller)
    assert not rig.jobs.begun
    land(tmp_path)
    advance(rig, 11, watched.poller)
    assert len(rig.jobs.begun) == 1


def test_rule__unchanged_result__wakes_nothing(rig: Rig, tmp_path: Path) -> None:
    watched = Watched(rig, tmp_path, files())
    rig.define(reading("landed"))
    advance(rig, 12, watched.poller)
    before = len(rig.all_changes())
    advance(rig, 30, watched.poller)
    assert watched.counts["landed"] >= 4
    assert len(rig.all_changes()) == before


def test_rule__probe_fails_after_a_pass__readiness_is_unknown_and_no_job_starts(rig: Rig, tmp_path: Path) -> None:
    land(tmp_path)
    watched = Watched(rig, tmp_path, files())
    rig.define(reading("landed"))
    advance(rig, 5, watched.poller)
    watched.set(files(path="/etc/passwd"))
    advance(rig, 11, watched.poller)
    assert watched.seen[-1][1].verdict is Verdict.UNKNOWN
    rig.mark(SLOT)
    advance(rig, 20, watched.poller)
    assert not rig.jobs.begun


def test_trigger__sensor_of_a_schedule_is_a_probe__its_pass_starts_the_period(rig: Rig, tmp_path: Path) -> None:
    watched = Watched(rig, tmp_path, files(path="in/${date}/*", period="daily"))
    starts = Schedule(name="daily", sensor=SensorTrigger(key="probe:landed"))
    for name in ("silver", "gold"):
        rig.define(pipeline(name, schedules=(starts,), readiness=Readiness()))
    advance(rig, 12, watched.poller)
    assert not rig.jobs.begun
    land(tmp_path, f"in/{DATE}/a")
    advance(rig, 12, watched.poller)
    assert len(rig.jobs.begun) == 2
    # Looking again at the same files starts nothing.
    advance(rig, 30, watched.poller)
    assert len(rig.jobs.begun) == 2


def test_period__current_and_earlier__have_results_of_their_own(rig: Rig, tmp_path: Path) -> None:
    land(tmp_path, "in/2026-03-02/a")
    watched = Watched(rig, tmp_path, files(path="in/${date}/*", period="daily"))
    advance(rig, 4, watched.poller)
    verdicts = {result.period: result.verdict for result in watched.results.get("landed").results}
    assert verdicts == {"2026-03-03": Verdict.FAIL, "2026-03-02": Verdict.PASS}
    reading_of = rig.pipelines.sensors.read("any", ["probe:landed"], "2026-03-02")
    assert reading_of.sensors["probe:landed"].data["ready"] is True


def test_trait__names_a_probe__answers_with_the_shared_result(rig: Rig, tmp_path: Path) -> None:
    land(tmp_path, "in/2026-03-01/a")
    watched = Watched(rig, tmp_path, files(path="in/${date}/*", period="daily"))
    evaluator = ProbeEvaluator(watched.catalog, watched.results, watched.runner)
    advance(rig, 4, watched.poller)

    def ask(date: str) -> TraitStatus:
        return evaluator.evaluate(replace(question("probe:landed"), date=date, now=rig.now)).status

    land(tmp_path, f"in/{DATE}/late")
    # The stored result counts until the next look.
    assert ask(DATE) is TraitStatus.FAIL
    # A period that is not polled is looked at now.
    assert ask("2026-03-01") is TraitStatus.PASS
    assert watched.counts["landed"] == 2


def test_push__under_the_key_of_a_probe__is_refused(rig: Rig) -> None:
    rig.define(reading("landed"))
    with pytest.raises(InvalidPayloadError, match="written by Headgate"):
        rig.push("silver", "probe:landed", ready=True)
    with pytest.raises(InvalidPayloadError, match="written by Headgate"):
        rig.pipelines.sensors.delete("silver", "probe:landed")


def test_readers__definition_changes__are_those_that_name_the_probe(rig: Rig) -> None:
    rig.define(reading("landed"), reading("landed", pipeline_id="gold"), reading("other", pipeline_id="iron"))
    trait = Readiness(traits={"landed": Trait(evaluator="probe:landed")})
    rig.define(pipeline("tin", readiness=trait))
    assert sorted(rig.pipelines.known.dependents("probe:landed")) == ["gold", "silver", "tin"]
    rig.define(reading("other", pipeline_id="gold"))
    assert sorted(rig.pipelines.known.dependents("probe:landed")) == ["silver", "tin"]


def test_reload__probe_is_changed__is_looked_at_within_seconds_and_others_are_not(rig: Rig, tmp_path: Path) -> None:
    hourly = probe(id="landed", files={"path": "in/*"}, every="1h")
    other = probe(id="other", files={"path": "in/*"}, every="1h")
    watched = Watched(rig, tmp_path, hourly, other)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").touch()
    advance(rig, 5, watched.poller)
    before = watched.counts["other"]

    watched.set(replace(hourly, expect=(Expectation(field="count", check="gte", value=2),)), other)
    advance(rig, 5, watched.poller)

    state = watched.results.get("landed")
    assert [result.verdict for result in state.results] == [Verdict.FAIL]
    assert watched.counts == {"landed": 2, "other": before}


def test_reload__probe_is_changed_during_a_look__is_looked_at_again_after_it(rig: Rig, tmp_path: Path) -> None:
    hourly = probe(id="landed", files={"path": "in/*"}, every="1h")
    watched = Watched(rig, tmp_path, hourly)
    started: list[Callable[[], None]] = []
    advance(rig, 3, watched.poller, submit=started.append)
    watched.set(replace(hourly, expect=(Expectation(field="count", check="equals", value=0),)))
    advance(rig, 3, watched.poller, submit=started.append)
    assert len(started) == 1, "one look at a time"
    started[0]()
    advance(rig, 3, watched.poller)

    assert [result.verdict for _, result in watched.seen] == [Verdict.FAIL, Verdict.PASS]


def test_trait__result_of_an_earlier_definition__is_not_used(rig: Rig, tmp_path: Path) -> None:
    watched = Watched(rig, tmp_path, files())
    advance(rig, 3, watched.poller)
    assert watched.results.get("landed").results[0].verdict is Verdict.FAIL
    (tmp_path / "there").touch()

    watched.set(files(path="there"))
    evaluator = ProbeEvaluator(watched.catalog, watched.results, watched.runner)
    answer = evaluator.evaluate(replace(question("probe:landed"), now=rig.now))

    assert answer.status is TraitStatus.PASS
