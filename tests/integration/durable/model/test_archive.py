"""Archives of histories: kept for as long as is wished, and never gone while a row still points to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from headgate.clock import VirtualClock
from headgate.durable.model.archive import GRACE_SECONDS, KEPT_SECONDS, PREFIX, Archive, Archiver
from headgate.durable.model.history import Started, Status, Turn
from headgate.durable.model.records import ARCHIVE, Execution, execution_of, turn_put
from headgate.durable.model.starts import StartRequest, start_writes
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import CONTROL, EXECUTIONS, TURNS
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from tests.simulation.durable_processes import Crash, Fault, ProcessStore
from tests.stores import open_sqlite

DAY: Final = 86_400.0
TURNS_EACH: Final = 2
CALLS_MAX: Final = 100


class Rig:
    """A store with executions that have ended, and archivers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self.blobs = FolderBlobs(folder / "archives")

    def archiver(self, store: Any = None, *, kept_seconds: float | None = KEPT_SECONDS) -> Archiver:
        archive = Archive(self.blobs)
        archive.kept_seconds = kept_seconds
        return Archiver(store if store is not None else self.store, self.clock, archive)

    def end(self, execution_id: str, earlier: Execution | None = None) -> None:
        """Store an execution that ended just now, in the place of an earlier one of the same id if there is one."""
        now_ms = int(self.clock.seconds() * 1000)
        begun, (put, *_) = start_writes(
            StartRequest(execution_id=execution_id, workflow="w", input=Raw(b"1")), now_ms, "unique", earlier
        )
        self.store.transact([put])
        for number in range(1, TURNS_EACH + 1):
            started = Started(workflow="w", input=Raw(b"1"), run=begun.run)
            turn = Turn(turn=begun.turn + number, run=begun.run, at_ms=now_ms, events=(started,), commands=())
            self.store.transact([turn_put(execution_id, turn)])
        ended = msgspec.structs.replace(
            begun,
            version=begun.version + 1,
            status=Status.SUCCEEDED,
            turn=begun.turn + TURNS_EACH,
            ready_pk=ARCHIVE,
            ready_at_ms=now_ms,
        )
        self.store.transact([ended.replacing(begun.version)])

    def row(self, execution_id: str) -> Execution | None:
        item = self.store.get(EXECUTIONS, Key(execution_id), consistent=True)
        return None if item is None else execution_of(item)

    def archive_of(self, execution_id: str) -> str:
        row = self.row(execution_id)
        assert row is not None
        assert row.archive is not None
        return row.archive

    def names(self) -> list[str]:
        return list(self.blobs.list(PREFIX))

    def notes(self) -> list[dict[str, Any]]:
        return self.store.query(Query(table=CONTROL, index="due-index", partition="ARCHIVES")).items

    def check(self, execution_ids: list[str]) -> None:
        """Every row that points to an archive points to one that can be read."""
        for row in filter(None, map(self.row, execution_ids)):
            if row.archive is not None:
                assert len(Archive(self.blobs).read(row.archive)) == row.archived_through


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


def test_archive_due__kept_for_as_long_as_is_wished__row_goes_and_then_its_archive(rig: Rig) -> None:
    archiver = rig.archiver(kept_seconds=30 * DAY)
    rig.end("e")
    archiver.archive_due()
    name = rig.archive_of("e")
    rig.clock.advance(30 * DAY - 1)
    archiver.archive_due()
    assert rig.row("e") is not None
    rig.clock.advance(1)

    archiver.archive_due()
    assert rig.row("e") is None
    # A reader of the earlier row still finds what it points to.
    assert rig.names() == [name]
    rig.clock.advance(GRACE_SECONDS)
    archiver.archive_due()

    assert rig.names() == []
    assert rig.notes() == []


def test_archive_due__kept_for_ever__is_there_after_ten_years(rig: Rig) -> None:
    archiver = rig.archiver(kept_seconds=None)
    rig.end("e")
    archiver.archive_due()
    rig.clock.advance(3650 * DAY)

    archiver.archive_due()

    assert [turn.turn for turn in Archive(rig.blobs).read(rig.archive_of("e"))] == [1, 2]


def test_archive_due__a_shorter_time_is_wished_later__counts_for_what_was_archived_before(rig: Rig) -> None:
    rig.end("e")
    rig.archiver(kept_seconds=None).archive_due()
    rig.clock.advance(10 * DAY)

    rig.archiver(kept_seconds=9 * DAY).archive_due()

    assert rig.row("e") is None


def test_archive_due__two_histories_that_are_alike__go_each_in_its_own_time(rig: Rig) -> None:
    archiver = rig.archiver(kept_seconds=DAY)
    rig.end("first")
    rig.end("second")
    archiver.archive_due(limit=1)
    rig.clock.advance(DAY / 2)
    archiver.archive_due()
    assert rig.archive_of("first") != rig.archive_of("second")
    rig.clock.advance(DAY / 2)

    archiver.archive_due()
    rig.clock.advance(1)
    rig.check(["first", "second"])

    assert rig.row("first") is None
    assert rig.row("second") is not None


def test_archive_due__an_id_that_is_used_again__keeps_the_newer_archive_alone(rig: Rig) -> None:
    archiver = rig.archiver()
    rig.end("e")
    archiver.archive_due()
    older = rig.archive_of("e")
    rig.end("e", earlier=rig.row("e"))
    archiver.archive_due()
    assert sorted(rig.names()) == sorted([older, rig.archive_of("e")])
    rig.clock.advance(GRACE_SECONDS)

    archiver.archive_due()

    assert rig.names() == [rig.archive_of("e")]
    assert [turn.turn for turn in Archive(rig.blobs).read(rig.archive_of("e"))] == [1, 2, 3, 4]


@pytest.mark.parametrize("call", [1, 3, 4], ids=["before the look", "after the look", "before the commit"])
def test_archive_due__an_id_that_is_used_again_when_its_time_has_come__is_left_alone(rig: Rig, call: int) -> None:
    rig.end("e")
    rig.archiver().archive_due()
    rig.clock.advance(DAY)
    store = ProcessStore(rig.store)

    def start_again() -> None:
        request = StartRequest(execution_id="e", workflow="w", input=Raw(b"1"))
        rig.store.transact(start_writes(request, int(rig.clock.seconds() * 1000), "again", rig.row("e"))[1])

    store.meanwhile = (call, start_again)
    rig.archiver(store, kept_seconds=DAY).archive_due()
    rig.clock.advance(GRACE_SECONDS)
    rig.archiver(kept_seconds=DAY).archive_due()

    row = rig.row("e")
    assert row is not None
    assert row.status is Status.RUNNING
    rig.check(["e"])


def test_archive_due__more_than_a_step_takes__goes_step_by_step(rig: Rig) -> None:
    archiver = rig.archiver(kept_seconds=DAY)
    ids = [f"e{number}" for number in range(5)]
    for execution_id in ids:
        rig.end(execution_id)
    archiver.archive_due()
    rig.clock.advance(DAY)
    left = []
    for _ in range(3):
        archiver.archive_due(limit=2)
        left.append(sum(rig.row(execution_id) is not None for execution_id in ids))
    rig.clock.advance(GRACE_SECONDS)
    for _ in range(3):
        archiver.archive_due(limit=2)
        left.append(len(rig.names()))

    assert left == [3, 1, 0, 3, 1, 0]


@pytest.mark.parametrize("is_written", [False, True], ids=["before it wrote the blob", "after"])
def test_archive_due__a_process_that_slept_while_others_took_it_for_dead__points_to_nothing_that_is_gone(
    rig: Rig, is_written: bool
) -> None:
    rig.end("e")
    store = ProcessStore(rig.store)
    slow = rig.archiver(store)

    def others_clean_up() -> None:
        assert len(rig.names()) == int(is_written)
        rig.clock.advance(GRACE_SECONDS)
        rig.archiver(kept_seconds=None)._sweep(100)
        assert rig.notes() == []

    # After the note was made: the turns are read for the blob, and then the row is to point to it.
    store.meanwhile = (_call_of(rig, "transact" if is_written else "query", after="put"), others_clean_up)
    assert slow.archive_due() == 0
    rig.check(["e"])
    rig.archiver().archive_due()
    rig.clock.advance(GRACE_SECONDS)
    rig.archiver().archive_due()

    rig.check(["e"])
    assert rig.names() == [rig.archive_of("e")]
    assert rig.notes() == []


def _call_of(rig: Rig, wanted: str, *, after: str) -> int:
    """Return the number of the first call of a kind that an archiver makes after one of another kind, and do none."""
    calls: list[str] = []

    class ReportingStore(ProcessStore):
        def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            calls.append(name)
            if name == wanted and after in calls:
                raise Crash
            return None if name == "put" else method(*args, **kwargs)

    with pytest.raises(Crash):
        Archiver(ReportingStore(rig.store), rig.clock, Archive(FolderBlobs(rig.folder / "tried"))).archive_due()
    return len(calls)


def test_archive_due__a_blob_that_cannot_be_deleted__is_reported_and_tried_again_and_stops_no_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.end("e")
    archiver = rig.archiver(kept_seconds=DAY)
    archiver.archive_due()
    rig.clock.advance(DAY)
    archiver.archive_due()
    rig.clock.advance(GRACE_SECONDS)
    # The tests may run as root, whom no permission stops.
    monkeypatch.setattr(Path, "unlink", _refuse)

    archiver.archive_due()
    assert len(rig.notes()) == 1
    monkeypatch.undo()
    rig.clock.advance(GRACE_SECONDS)
    archiver.archive_due()

    assert rig.names() == []
    assert rig.notes() == []


def _refuse(path: Path, missing_ok: bool = False) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_crash__at_every_call_to_the_store__no_row_points_to_nothing_and_nothing_is_left_over(
    tmp_path: Path, is_done: bool
) -> None:
    for number in range(1, CALLS_MAX):
        folder = tmp_path / str(number)
        folder.mkdir()
        rig = Rig(folder)
        store = ProcessStore(rig.store)
        store.fault = Fault(number, is_done=is_done)
        ids = ["kept", "twice", "gone"]
        rig.end("twice")
        try:
            _live(rig, rig.archiver(store, kept_seconds=30 * DAY))
        except Crash:
            rig.check(ids)
            # Another process goes on. Whatever the first one was about, a second try finds it due again.
        _live(rig, rig.archiver(kept_seconds=30 * DAY))
        rig.check(ids)
        rig.clock.advance(GRACE_SECONDS)
        rig.archiver(kept_seconds=None)._sweep(100)
        rows = [row for row in map(rig.row, ids) if row is not None]
        assert sorted(rig.names()) == sorted(row.archive for row in rows if row.archive is not None), number
        assert rig.notes() == [], number
        rig.store.close()
        if store.fault is not None:
            assert number > 15, "it takes more calls than that"
            return
    pytest.fail(f"it takes more than {CALLS_MAX} calls")


def _live(rig: Rig, archiver: Archiver) -> None:
    """Archive one that is used again, one that is kept, and one whose time comes."""
    archiver.archive_due()
    row = rig.row("twice")
    if row is not None and row.run == 1 and row.archive is not None and row.ready_pk != ARCHIVE:
        rig.end("twice", earlier=row)
    if rig.row("gone") is None and rig.row("kept") is None:
        rig.end("gone")
        archiver.archive_due()
        rig.clock.advance(20 * DAY)
        rig.end("kept")
    archiver.archive_due()
    rig.clock.advance(10 * DAY)
    archiver.archive_due()
    rig.clock.advance(GRACE_SECONDS)
    archiver.archive_due()


def test_archive_due__rows_that_were_read__are_gone_once_the_archive_has_them(rig: Rig) -> None:
    rig.end("e")

    assert rig.archiver().archive_due() == 1
    assert rig.archiver().archive_due() == 0

    assert rig.store.query(Query(table=TURNS, partition="e")).items == []
    assert rig.notes() == []


def test_read__an_archive_of_an_earlier_build__is_read(rig: Rig) -> None:
    # Those were named by a digest of what they hold.
    turn = Turn(turn=1, run=1, at_ms=1, events=(), commands=())
    archive = Archive(rig.blobs)
    name = f"{PREFIX}{'a' * 64}"

    archive.write(name, [turn])

    assert archive.read(name) == [turn]
