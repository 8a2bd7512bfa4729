"""Reconciling: a counter that is wrong is found and set right, also while chunks move, and never made wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.errors import CorruptionError, HeadgateError
from headgate.fanout.model.rows import ACTIVE, Chunk, chunk_key, counter_key, run_key
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair import reconcile as reconciling
from headgate.fanout.repair.auto_heal import Healer
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.reconcile import FindingKind, Reconciler, ReconcileReport
from headgate.fanout.repair.recounts import NAMES, Recount, faults, repaired
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put
from tests.integration.fanout.worlds import RUN, World, crash_everywhere, once, read_in_pages

FIRST = "chunk-0000000"


class Rig(World):
    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.reconciler = Reconciler(self.store, self.clock, self.ids)

    def reconcile(self, *, repair: bool = False) -> ReconcileReport:
        return self.reconciler.reconcile(RUN, repair=repair)

    def set_row(self, chunk_id: str, **values: object) -> None:
        """Change a row by hand, which no component does; None takes an attribute away."""
        found = {name: value for name, value in values.items() if value is not None}
        gone = tuple(name for name, value in values.items() if value is None)
        self.sqlite.update(FANOUT, chunk_key(RUN, chunk_id), set=found, remove=gone)

    def hold(self) -> None:
        self._held = self.claim("chunk-0000016")

    def release(self) -> None:
        self.tracker.release(self._held)

    def redrive(self, chunk_id: str) -> None:
        Redriver(self.sqlite, self.clock, self.ids).redrive(RUN, ChunkSelection(chunk_ids=(chunk_id,)))

    def cut(self, chunk_id: str) -> None:
        Bisector(self.sqlite, self.clock, self.ids).isolate(RUN, chunk_id)

    def mixed(self) -> None:
        """Make a fan-out with a chunk in every disposition."""
        self.split(20, size=2, max_attempts=2)
        self.complete(FIRST, item_errors={1: "odd"})
        self.kill("chunk-0000002")
        self.fail("chunk-0000004", is_final=True)
        self.fail("chunk-0000006")
        self.claim("chunk-0000008")
        self.complete("chunk-0000010", deferred=[10])
        self.control.skip(RUN, ["chunk-0000012"])
        self.complete("chunk-0000014", deferred=[15])
        self.complete("slow-0000014")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


def said(report: ReconcileReport) -> list[tuple[FindingKind, str, bool]]:
    return [(finding.kind, finding.description, finding.is_repaired) for finding in report.findings]


# Nothing wrong.


@pytest.mark.parametrize("shards", [1, 4])
def test_reconcile__chunks_in_every_state__nothing_is_found(tmp_path: Path, shards: int) -> None:
    with closing(Rig(tmp_path, shards=shards)) as rig:
        rig.mixed()
        before = rig.snapshot()

        report = rig.reconcile(repair=True)

        assert report.is_clean, report
        assert (report.chunks, report.pieces) == (10, 2)
        counts = rig.counts()
        assert {name: getattr(report.counts, name) for name in NAMES} == {name: getattr(counts, name) for name in NAMES}
        assert rig.snapshot() == before


@pytest.mark.parametrize("how", ["SUCCEEDED", "PARTIAL", "CANCELLED", "EMPTY", "SPLITTING", "CUT", "HEALED", "QUEUE"])
def test_reconcile__fanouts_of_every_kind__nothing_is_found(rig: Rig, how: str) -> None:
    rig.split(
        0 if how == "EMPTY" else 8,
        size=4,
        max_attempts=1,
        heal_redrives_max=1,
        heal_action="slow-lane",
        queue_url="https://sqs/q" if how == "QUEUE" else None,
    )
    match how:
        case "SUCCEEDED":
            rig.complete(FIRST)
            rig.complete("chunk-0000004")
        case "PARTIAL":
            rig.complete(FIRST)
            rig.kill("chunk-0000004")
        case "CANCELLED":
            rig.kill(FIRST)
            rig.control.cancel(RUN)
        case "SPLITTING":
            rig.sqlite.update(FANOUT, run_key(RUN), set={"status": "SPLITTING"})
        case "CUT":
            rig.kill(FIRST)
            rig.cut(FIRST)
        case "HEALED":
            rig.kill(FIRST)
            Healer(rig.sqlite, rig.clock, rig.ids).heal(RUN)
    rig.tend()

    report = rig.reconcile()

    assert report.is_clean, report


# Counters.


def test_reconcile__a_counter_changed_by_hand__is_found_explained_and_repaired(rig: Rig) -> None:
    rig.mixed()
    expected = rig.snapshot()
    rig.corrupt(done=3, dead=-1, items_ok=10)

    found = rig.reconcile()
    assert said(found) == [
        (FindingKind.COUNTER, "counter CTR#00 says done 5, and its rows make 2", False),
        (FindingKind.COUNTER, "counter CTR#00 says dead 0, and its rows make 1", False),
        (FindingKind.COUNTER, "counter CTR#00 says items_ok 14, and its rows make 4", False),
    ]
    assert rig.counts().done == 5, "it was only looked at"
    repaired = rig.reconcile(repair=True)

    assert [finding.is_repaired for finding in repaired.findings] == [True, True, True]
    rig.check()
    assert rig.snapshot()[:-1] == expected[:-1]
    assert rig.snapshot()[-1] == {"skipped": 1, "repaired": 1}, "it is noted"
    assert rig.reconcile(repair=True).is_clean


def test_reconcile__what_rows_cannot_determine__is_left_alone(rig: Rig) -> None:
    rig.mixed()
    before = rig.counts()
    rig.corrupt(dead=1)

    rig.reconcile(repair=True)

    assert rig.counts() == before, "attempts, time and all"


def test_reconcile__a_counter_of_one_shard__is_named(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, shards=3)) as rig:
        rig.split(30, max_attempts=1)
        rig.kill(FIRST)
        rig.corrupt(shard=2, queued=5)
        rig.corrupt(shard=1, queued=-5)

        report = rig.reconcile(repair=True)

        assert [finding.description.split(",")[0].rpartition(" ")[0] for finding in report.findings] == [
            "counter CTR#01 says queued",
            "counter CTR#02 says queued",
        ]
        rig.check()


def test_reconcile__a_counter_that_is_gone__is_made_anew(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, shards=2)) as rig:
        rig.split(9, max_attempts=1)
        rig.kill(FIRST)
        rig.sqlite.delete(FANOUT, counter_key(RUN, 1))

        report = rig.reconcile(repair=True)

        assert said(report) == [(FindingKind.COUNTER, "counter CTR#01 does not exist", True)]
        rig.check()
        rig.complete("chunk-0000001")
        rig.check()


def test_reconcile__a_counter_that_is_no_number__is_an_error(rig: Rig) -> None:
    rig.split(2)
    rig.sqlite.update(FANOUT, counter_key(RUN, 0), set={"queued": "two"})

    with pytest.raises(CorruptionError, match=r"CTR#00: queued is 'two', not a number"):
        rig.reconcile()


def test_reconcile__two_repairs_at_once__are_one(rig: Rig) -> None:
    rig.mixed()
    rig.corrupt(done=3)
    other = Reconciler(rig.sqlite, rig.clock, rig.ids)
    rig.crashing.before_write = once(lambda: other.reconcile(RUN, repair=True))

    report = rig.reconcile(repair=True)

    assert [finding.is_repaired for finding in report.findings] == [False]
    rig.check()


def test_reconcile__repaired_by_another_between_two_counts__starts_anew(rig: Rig) -> None:
    rig.mixed()
    rig.corrupt(items_failed=3)
    other = Reconciler(rig.sqlite, rig.clock, rig.ids)
    # The row, the rows, the pieces, the counter, the rows, the pieces, the counter.
    at_read(
        rig,
        {
            # Leaves something to be counted once more, when what is wrong is known already.
            5: lambda: rig.claim("chunk-0000016"),
            7: lambda: other.reconcile(RUN, repair=True),
        },
    )

    report = rig.reconcile(repair=True)

    assert report.is_clean, "for the other has repaired it"
    rig.check()


def at_read(rig: Rig, acts: dict[int, Callable[[], object]]) -> None:
    """Have something done before the n-th read of the one who is tested."""
    reads = [0]

    def meanwhile() -> None:
        reads[0] += 1
        acts.get(reads[0], lambda: None)()

    rig.crashing.before_read = meanwhile


# Chunks that move while they are counted.


EXCURSIONS: dict[str, tuple[Callable[[Rig], object], Callable[[Rig], object]]] = {
    "open": (lambda rig: rig.hold(), lambda rig: rig.release()),
    "open from given up": (lambda rig: rig.redrive("chunk-0000002"), lambda rig: rig.kill("chunk-0000002")),
    "dead": (lambda rig: rig.kill("chunk-0000018"), lambda rig: rig.redrive("chunk-0000018")),
    "dead and skipped": (
        lambda rig: rig.kill("chunk-0000018"),
        lambda rig: rig.control.skip(RUN, ["chunk-0000018"]),
    ),
    "deferred": (
        lambda rig: rig.complete("chunk-0000018", deferred=[18]),
        lambda rig: rig.complete("slow-0000018"),
    ),
    "cut": (lambda rig: rig.cut("chunk-0000002"), lambda rig: rig.complete("chunk-0000003")),
    "set aside": (lambda rig: rig.cut("chunk-0000019"), lambda rig: rig.redrive("chunk-0000019")),
}


@pytest.mark.parametrize("way", list(EXCURSIONS))
def test_reconcile__a_chunk_that_is_elsewhere_when_the_counter_is_read_and_back_by_the_next_count__is_no_difference(
    rig: Rig, way: str
) -> None:
    rig.mixed()
    if way == "set aside":
        rig.kill("chunk-0000018")
        rig.cut("chunk-0000018")
        rig.kill("chunk-0000019")
    there, back = EXCURSIONS[way]
    # After the first count, just before the counter is read; and just after it, before the second count.
    at_read(rig, {4: partial(there, rig), 5: partial(back, rig)})

    report = rig.reconcile(repair=True)

    assert report.is_clean, report
    rig.check()


def test_reconcile__all_the_time_busy__repairs_what_stands_still_and_leaves_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_pages(monkeypatch, 100)
    rig.split(400, max_attempts=1)
    rig.kill(FIRST)
    rig.corrupt(dead=4, done=7)
    todo = iter(range(1, 400))

    rig.crashing.before_read = lambda: rig.complete(f"chunk-{next(todo):07d}")
    report = rig.reconcile(repair=True)
    rig.crashing.before_read = lambda: None

    assert said(report) == [(FindingKind.COUNTER, "counter CTR#00 says dead 5, and its rows make 1", True)]
    assert set(report.unsettled) == {"waiting", "queued", "retrying", "running", "done", "items_ok"}
    assert rig.counts().dead == 1
    assert rig.counts().drift() == 7, "not touched"
    assert said(rig.reconcile(repair=True))[0][0] is FindingKind.COUNTER
    rig.check()


def test_reconcile__workers_never_pause__rows_are_read_three_times_at_most(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_pages(monkeypatch, 100)
    rig.split(400)
    todo = iter(range(400))
    reads: list[str] = []

    def complete_one() -> None:
        chunk_id = f"chunk-{next(todo):07d}"
        reads.append(chunk_id)
        rig.complete(chunk_id)

    rig.crashing.before_read = complete_one
    report = rig.reconcile()

    assert "total" not in report.unsettled
    assert "done" in report.unsettled
    # Four pages of chunks and one of the slow lane each time, the counters in between, and the row of the fan-out.
    assert len(reads) <= 3 * 5 + 2 + 2, reads


def test_reconcile__busy_with_a_wrong_sum_of_buckets__says_at_least_that(rig: Rig) -> None:
    rig.split(200, max_attempts=1)
    rig.corrupt(done=7)
    todo = iter(range(200))

    rig.crashing.before_read = lambda: rig.complete(f"chunk-{next(todo):07d}")
    report = rig.reconcile()

    assert [finding.description for finding in report.findings] == [
        "the buckets of all counters make 207, and their total is 200"
    ]
    assert not report.is_clean


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), pace=st.floats(0.0, 0.9))
def test_reconcile__whatever_moves_meanwhile__no_counter_is_made_wrong(tmp_path: Path, seed: int, pace: float) -> None:
    chance = random.Random(seed)
    with (
        closing(Rig(Path(mkdtemp(dir=tmp_path)), shards=chance.choice([1, 2]))) as rig,
        pytest.MonkeyPatch.context() as m,
    ):
        read_in_pages(m, chance.choice([2, 5, 1000]))
        rig.split(24, size=2, max_attempts=2)
        people = People(rig, chance)
        for _ in range(10):
            people.act()
        wrong = {chance.choice(NAMES): chance.choice([-3, 1, 5]) for _ in range(chance.randint(0, 3))}
        if wrong:
            rig.corrupt(**wrong)

        rig.crashing.before_read = rig.crashing.before_write = partial(people.maybe, pace)
        report = rig.reconcile(repair=True)
        rig.crashing.before_read = rig.crashing.before_write = lambda: None

        # Each number is right now, or as wrong as it was and left unsettled.
        truth = rig.reconcile()
        counters = [finding for finding in truth.findings if finding.kind is FindingKind.COUNTER]
        left = {finding.description.split()[3]: finding for finding in counters}
        assert set(left) <= set(wrong) & set(report.unsettled), (seed, truth.findings)
        assert all(finding.kind is FindingKind.COUNTER for finding in truth.findings)
        rig.reconcile(repair=True)
        rig.check()


class People:
    """Workers and users who do whatever comes into their heads."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self._rig = rig
        self._chance = chance
        self._redriver = Redriver(rig.sqlite, rig.clock, rig.ids)
        self._bisector = Bisector(rig.sqlite, rig.clock, rig.ids)

    def maybe(self, pace: float) -> None:
        if self._chance.random() < pace:
            self.act()

    def act(self) -> None:
        rig, chance = self._rig, self._chance
        chunk = chance.choice(rig.rows())
        acts: list[Callable[[], object]] = [
            partial(rig.complete, chunk.chunk_id),
            partial(rig.complete, chunk.chunk_id, deferred=[chunk.start] if chunk.sk.startswith("CHUNK") else []),
            partial(rig.complete, chunk.chunk_id, item_errors={chunk.start: "E: bad item"}),
            partial(rig.fail, chunk.chunk_id),
            partial(rig.fail, chunk.chunk_id, is_final=True),
            partial(self._release, chunk.chunk_id),
            partial(rig.control.skip, RUN, [chunk.chunk_id]),
            partial(self._redriver.redrive, RUN, ChunkSelection(all=True), limit=1),
            partial(self._bisector.isolate, RUN, chunk.chunk_id),
            rig.tend,
        ]
        # Not possible for this chunk now.
        with suppress(HeadgateError, AssertionError):
            chance.choice(acts)()

    def _release(self, chunk_id: str) -> None:
        self._rig.tracker.release(self._rig.claim(chunk_id))


# Items.


def test_reconcile__a_row_that_is_gone__its_items_are_missed(rig: Rig) -> None:
    rig.split(10, size=2)
    rig.sqlite.delete(FANOUT, chunk_key(RUN, "chunk-0000004"))
    rig.sqlite.delete(FANOUT, chunk_key(RUN, "chunk-0000008"))

    report = rig.reconcile(repair=True)

    assert [finding.description for finding in report.findings if finding.kind is FindingKind.ITEMS] == [
        "items 4 to 5 are in no chunk, between chunk-0000002 and chunk-0000006",
        "items 8 to 9 are in no chunk, after chunk-0000006",
    ]
    rig.check()


def test_reconcile__rows_that_overlap__are_named(rig: Rig) -> None:
    rig.split(10, size=5)
    rig.set_row(FIRST, n_spectra=7)
    rig.set_row("chunk-0000005", n_spectra=6)

    report = rig.reconcile()

    assert [finding.description for finding in report.findings if finding.kind is FindingKind.ITEMS] == [
        "items 5 to 6 are in two chunks, chunk-0000000 and chunk-0000005",
        "chunk-0000005 has items up to 10, and the fan-out has only 10",
    ]


def test_reconcile__a_chunk_within_another__the_longer_one_counts_on(rig: Rig) -> None:
    rig.split(10, size=10)
    inner = replace(rig.row(FIRST), sk="CHUNK#chunk-0000003", start=3, items=2)
    rig.sqlite.transact([Put(FANOUT, msgspec.to_builtins(inner))])

    report = rig.reconcile()

    assert [finding.description for finding in report.findings if finding.kind is FindingKind.ITEMS] == [
        "items 3 to 4 are in two chunks, chunk-0000000 and chunk-0000003"
    ]


@pytest.mark.parametrize(("counts_max", "read"), [(5, 3), (2, 7)])
def test_reconcile__a_chunk_cut_during_the_count__does_not_seem_to_overlap(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, counts_max: int, read: int
) -> None:
    read_in_pages(monkeypatch, 1)
    monkeypatch.setattr(reconciling, "COUNTS_MAX", counts_max)
    rig.split(8, size=4, max_attempts=1)
    rig.kill(FIRST)
    # The first row has just been read with all its items, in the first count or in the last.
    at_read(rig, {read: lambda: rig.cut(FIRST)})

    report = rig.reconcile(repair=True)

    assert report.findings == ()
    assert report.chunks == 3
    assert bool(report.unsettled) is (counts_max == 2)
    rig.check()


def test_reconcile__items_deferred_to_a_piece_that_is_gone__are_missed(rig: Rig) -> None:
    rig.split(4, size=2)
    rig.complete(FIRST, deferred=[1])
    rig.sqlite.delete(FANOUT, chunk_key(RUN, "slow-0000000"))

    report = rig.reconcile(repair=True)

    assert (FindingKind.ITEMS, "1 chunks deferred items that have no slow-lane chunk", False) in said(report)


# Rows.


def test_reconcile__a_queued_chunk_that_no_worker_finds__is_put_where_they_look(rig: Rig) -> None:
    rig.split(3)
    rig.set_row(FIRST, queue_pk=None, queue_sk=None)
    assert len(rig.queries.queued(RUN, "main")) == 2

    report = rig.reconcile(repair=True)

    assert said(report) == [(FindingKind.ROW, "chunk-0000000 is QUEUED, and it is not in the queue", True)]
    assert len(rig.queries.queued(RUN, "main", due_ms=rig.queries.now_ms())) == 3
    assert rig.reconcile().is_clean


def test_reconcile__a_dead_chunk_that_is_not_listed__is_listed_since_it_died(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.kill(FIRST)
    listed = rig.row(FIRST)
    rig.clock.advance(500)
    rig.set_row(FIRST, attention_pk=None, attention_sk=None)

    report = rig.reconcile(repair=True)

    assert said(report) == [(FindingKind.ROW, "chunk-0000000 is DEAD, and the attention index does not list it", True)]
    assert rig.row(FIRST) == listed


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"status": "FAILED"}, "chunk-0000000 is DONE, and its status says FAILED instead of COMPLETED"),
        (
            {"attention_pk": f"{RUN}#DEAD", "attention_sk": "x"},
            "chunk-0000000 is DONE, and the attention index lists it",
        ),
        ({"queue_pk": f"{RUN}#main", "queue_sk": "0"}, "chunk-0000000 is DONE, and it is in the queue"),
    ],
)
def test_reconcile__a_row_that_is_wrong_by_itself__is_repaired(
    rig: Rig, values: dict[str, object], sentence: str
) -> None:
    rig.split(2)
    rig.complete(FIRST)
    expected = rig.row(FIRST)
    rig.set_row(FIRST, **values)

    report = rig.reconcile(repair=True)

    assert said(report) == [(FindingKind.ROW, sentence, True)]
    assert rig.row(FIRST) == expected


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"start": 1}, "chunk-0000000 has 1 as its first item"),
        ({"shard": 7}, "chunk-0000000 is counted in shard 7, of 1"),
    ],
)
def test_reconcile__a_row_of_which_is_unknown_how_it_should_be__is_only_named(
    rig: Rig, values: dict[str, object], sentence: str
) -> None:
    rig.split(2)
    rig.set_row(FIRST, **values)

    report = rig.reconcile(repair=True)

    assert (FindingKind.ROW, sentence, False) in said(report)


def test_reconcile__a_sign_of_life_during_the_repair__is_not_undone(rig: Rig) -> None:
    rig.split(2)
    claim = rig.claim(FIRST)
    rig.set_row(FIRST, attention_pk=None, attention_sk=None)
    rig.clock.advance(5)
    rig.crashing.before_write = once(lambda: rig.tracker.heartbeat(claim))

    report = rig.reconcile(repair=True)

    assert [finding.is_repaired for finding in report.findings] == [False]
    chunk = rig.row(FIRST)
    assert chunk.attention_sk == f"{chunk.lease_expires_at}#0000000"


def test_faults__a_waiting_chunk_without_a_queue__is_one(rig: Rig) -> None:
    fanout = rig.split(2)
    waiting = replace(
        rig.row(FIRST),
        disposition=Disposition.WAITING,
        status=Disposition.WAITING.status,
        queue_pk=None,
        queue_sk=None,
    )

    assert [fault.description for fault in faults(waiting, fanout)] == [
        "chunk-0000000 waits for its message to be sent, and the fan-out has no queue"
    ]


@settings(max_examples=100, deadline=None)
@given(
    disposition=st.sampled_from(list(Disposition)),
    slow=st.booleans(),
    lost=st.sets(st.sampled_from(["attention_pk", "attention_sk", "queue_pk", "queue_sk"])),
    garbage=st.dictionaries(st.sampled_from(["attention_pk", "queue_pk", "attention_sk", "queue_sk"]), st.just("x")),
)
def test_repaired__whatever_was_lost__has_no_fault_left(
    disposition: Disposition, slow: bool, lost: set[str], garbage: dict[str, str]
) -> None:
    chunk = Chunk(
        run_id=RUN,
        sk="SLOW#slow-0000000" if slow else "CHUNK#chunk-0000000",
        status=disposition.status,
        disposition=disposition,
        created_at="2026-01-01T00:00:00.000Z",
        start=0,
        items=1,
        token="t",
        lease_expires_at="2026-01-01T00:01:00.000Z" if disposition is Disposition.RUNNING else None,
    )
    damaged = replace(chunk, **dict.fromkeys(lost), **dict.fromkeys(garbage.keys() - lost, "x"))

    class Shards:
        shards = 1
        queue_url = "q"

    assert list(faults(repaired(damaged, 1_750_000_000_000), Shards())) == []  # type: ignore[arg-type]


# The fan-out's own row.


def test_reconcile__ended_with_an_open_chunk__is_opened(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.complete(FIRST)
    rig.kill("chunk-0000001")
    rig.tend()
    # As if the chunk had been put back without its fan-out.
    other = Redriver(rig.sqlite, rig.clock, rig.ids)
    ended = rig.fanout()
    other.redrive(RUN, ChunkSelection(all=True))
    rig.sqlite.transact([replace(ended, version=99).replacing(rig.fanout().version)])

    report = rig.reconcile(repair=True)

    assert said(report) == [(FindingKind.FANOUT, "it has ended as PARTIAL, and 1 chunks are open", True)]
    rig.check()
    rig.complete("chunk-0000001")
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_reconcile__ended_with_the_wrong_verdict__is_opened_and_judged_again(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.complete(FIRST)
    rig.kill("chunk-0000001")
    rig.corrupt(dead=-1, done=1, items_failed=-1, items_dead=-1)
    assert rig.tend().status is FanoutStatus.SUCCEEDED

    report = rig.reconcile(repair=True)

    assert (FindingKind.FANOUT, "it has ended as SUCCEEDED, and by its rows it should be PARTIAL", True) in said(report)
    assert rig.tend().status is FanoutStatus.PARTIAL
    assert rig.reconcile().is_clean


def test_reconcile__cancelled_and_judged_wrongly__stays_cancelled(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.kill(FIRST)
    rig.control.cancel(RUN)
    rig.tend()
    rig.sqlite.update(FANOUT, run_key(RUN), set={"status": "SUCCEEDED"})

    rig.reconcile(repair=True)

    assert rig.tend().status is FanoutStatus.CANCELLED


def test_reconcile__ended_with_other_numbers__gets_its_own(rig: Rig) -> None:
    rig.split(3, max_attempts=1)
    rig.complete(FIRST)
    rig.kill("chunk-0000001", "chunk-0000002")
    ended = rig.tend()
    rig.sqlite.update(
        FANOUT, run_key(RUN), set={"jobs_failed": 3, "counts": {"dead": 3, "attempts": 3, "total": 3, "done": 1}}
    )

    report = rig.reconcile(repair=True)

    assert said(report) == [
        (FindingKind.FANOUT, "its row says jobs_failed 3, and its chunks make 2", True),
        (
            FindingKind.FANOUT,
            "its row and its chunks differ in dead, items_total, items_ok, items_failed, items_dead",
            True,
        ),
    ]
    fixed = rig.fanout()
    assert (fixed.status, fixed.finished_at, fixed.chunks_failed) == (FanoutStatus.PARTIAL, ended.finished_at, 2)
    assert {name: fixed.counts.get(name, 0) for name in NAMES} == {name: ended.counts.get(name, 0) for name in NAMES}
    assert fixed.counts["attempts"] == 3
    assert rig.reconcile().is_clean


@pytest.mark.parametrize("is_ended", [False, True])
def test_reconcile__that_ends_after_it_was_counted__is_not_judged_by_what_was_counted(rig: Rig, is_ended: bool) -> None:
    rig.split(2, max_attempts=1)
    rig.complete(FIRST)
    if is_ended:
        rig.kill("chunk-0000001")
        rig.tend()

    def end() -> None:
        if is_ended:
            rig.redrive("chunk-0000001")
        rig.complete("chunk-0000001")
        assert rig.tend().status is FanoutStatus.SUCCEEDED

    # Its own row, which is read last.
    at_read(rig, {7: end})
    report = rig.reconcile(repair=True)

    assert report.findings == ()
    ended = rig.fanout()
    assert (ended.status, ended.chunks_completed, ended.is_finished) == (FanoutStatus.SUCCEEDED, 2, True)


def test_reconcile__not_ended_and_not_listed__is_listed(rig: Rig) -> None:
    rig.split(2)
    rig.sqlite.update(FANOUT, run_key(RUN), remove=["attention_pk", "attention_sk"])
    assert rig.queries.active().fanouts == []

    report = rig.reconcile(repair=True)

    assert said(report) == [(FindingKind.FANOUT, "it is open, and not in the index of open fan-outs", True)]
    assert rig.fanout().attention_pk == ACTIVE
    rig.check()


def test_reconcile__a_fanout_of_another_program__is_counted_and_left_alone(rig: Rig) -> None:
    rows = [
        {"PK": RUN, "SK": "RUN", "survey": "grs", "created_at": "2026-01-01", "jobs_total": 2, "jobs_failed": 3},
        {"PK": RUN, "SK": "CHUNK#chunk-0000000", "status": "COMPLETED", "n_spectra": 500},
        {"PK": RUN, "SK": "CHUNK#chunk-0000500", "status": "FAILED", "n_spectra": 500},
    ]
    rows[0]["n_spectra"] = 1000
    for row in rows:
        rig.sqlite.put(FANOUT, row)
    before = rig.snapshot()

    report = rig.reconcile(repair=True)

    assert said(report) == [
        (FindingKind.FANOUT, "its row says jobs_completed 0, and its chunks make 1", False),
        (FindingKind.FANOUT, "its row says jobs_failed 3, and its chunks make 1", False),
    ]
    assert rig.snapshot() == before


# Bounds and crashes.


def test_reconcile__very_many_findings__reports_the_first_and_counts_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "NAMED_MAX", 3)
    rig.split(10)
    for number in range(0, 10, 2):
        rig.set_row(f"chunk-{number:07d}", queue_pk=None)

    report = rig.reconcile()

    assert (len(report.findings), report.findings_count) == (3, 5)


def test_recount__any_number_of_rows__keeps_a_bounded_number_of_things(rig: Rig) -> None:
    fanout = rig.split(500)
    recount = Recount(fanout, named_max=10)
    rows = rig.rows()
    recount.add(rows[0])
    size = sum(len(value) for value in vars(recount).values() if isinstance(value, dict | list))
    for row in rows[1:]:
        recount.add(row)

    assert sum(len(value) for value in vars(recount).values() if isinstance(value, dict | list)) == size


def test_reconcile__a_crash_at_any_write__a_second_call_ends_it(tmp_path: Path) -> None:
    def build(folder: Path) -> World:
        rig = Rig(folder, shards=2)
        rig.split(12, max_attempts=1)
        rig.kill(FIRST, "chunk-0000003")
        rig.corrupt(shard=0, queued=3)
        rig.corrupt(shard=1, dead=2, items_ok=1)
        rig.set_row("chunk-0000005", queue_pk=None, queue_sk=None)
        rig.sqlite.update(FANOUT, run_key(RUN), remove=["attention_pk", "attention_sk"])
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        world.reconcile(repair=True)

    def check_later(world: World) -> None:
        del world

    assert crash_everywhere(tmp_path, build, act, during=check_later) == 4
