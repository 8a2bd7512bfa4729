"""Workers and splitters in processes of their own, killed, stopped, starved and misused: every chunk counts once."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.splitter import Order
from headgate.fanout.local import worker as local_worker
from headgate.fanout.local.child_process import Child
from headgate.fanout.local.worker import LocalWorker, Options
from headgate.fanout.model.child_protocol import Answer, Done, Job, Ready
from headgate.fanout.model.local_access import ANY_HANDLER
from headgate.fanout.model.rows import Fanout
from headgate.fanout.model.sources import ListSource, RangeSource, Source
from headgate.fanout.model.states import AttemptOutcome, Disposition, FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.fanout.service import FanoutService
from headgate.store.sqlite.store import SqliteStore
from tests.acceptance import fanout_handlers as mine
from tests.acceptance.program import until
from tests.fanout_books import RUN, Books, check_books, check_found, read_books
from tests.simulation.durable_processes import ProcessStore

ROOT = Path(__file__).parents[2]
# `make soak` goes on for longer.
SOAK_SECONDS = float(os.environ.get("HEADGATE_TEST_SOAK_SECONDS", "0"))
CHUNKS = 100_000 if SOAK_SECONDS else 5_000


class Site:
    """A folder with a store, the processes that work in it, and what they have left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.service: FanoutService
        self.store: SqliteStore
        self.service, self.store = mine.service_at(self.home)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str | Path, **environ: str | float) -> subprocess.Popen[bytes]:
        """Start a process of the program, and wait until it says that it is ready."""
        log = self.folder / f"log-{len(self.processes)}"
        more = {f"FANOUT_TEST_{name.upper()}": str(value) for name, value in environ.items()}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", mine.MODULE, *arguments],
                cwd=ROOT,
                env={**os.environ, "FANOUT_TEST_FOLDER": str(self.folder), "PYTHONPATH": str(self.folder), **more},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        until(lambda: b"ready" in log.read_bytes() or process.poll() is not None, "the line that says it is ready")
        return process

    def worker(self, **environ: str | float) -> subprocess.Popen[bytes]:
        return self.start("work", self.home, **environ)

    def work_off(self, **environ: str | float) -> None:
        """Run a worker until nothing is left to do."""
        worker = self.worker(until_idle=1, **environ)
        assert worker.wait(60) == 0, self.log_of(worker)

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"log-{self.processes.index(process)}").read_text()

    def split(self, items: Sequence[Any] | Source, handler: str, *, size: int = 1, **policy: Any) -> Fanout:
        source = ListSource(items) if isinstance(items, Sequence) else items
        order = Order("g", size, handler=f"{mine.MODULE}:{handler}", policy=mine.policy_of(**policy))
        return self.service.splitter.split(order, source, run_id=RUN)

    def books(self) -> Books:
        books = read_books(self.store, RUN)
        check_books(books)
        return books

    def journal(self) -> list[str]:
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def until_over(self, seconds_max: float = 60.0) -> Books:
        until(lambda: self.service.queries.fanout(RUN).is_finished, "the end of the fan-out", seconds_max)
        books = self.books()
        check_found(self.store, books)
        return books

    def survivors(self) -> list[int]:
        """Return the processes that anything of this test has started and that are still there."""
        mark = f"FANOUT_TEST_FOLDER={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                is_ours = entry.name.isdigit() and mark in (entry / "environ").read_bytes()
            except OSError:
                continue
            if is_ours:
                found.append(int(entry.name))
        return found

    def check_no_one_left(self, seconds_max: float = 5.0) -> None:
        until(lambda: not self.survivors(), f"the end of all processes ({self.survivors()})", seconds_max)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for process in site.processes:
        process.kill()
        process.wait()
    try:
        site.check_no_one_left()
    finally:
        for pid in site.survivors():
            os.kill(pid, signal.SIGKILL)
        site.store.close()


def check_performed(site: Site, books: Books) -> None:
    """No attempt was made twice, none that is not in the books, and none after a chunk had ended."""
    lines = Counter(site.journal())
    assert [line for line, count in lines.items() if count > 1] == []
    attempts: dict[str, list[int]] = {}
    for line in lines:
        chunk_id, attempt = line.split()[:2]
        attempts.setdefault(chunk_id, []).append(int(attempt))
    assert attempts.keys() == {chunk.chunk_id for chunk in books.main}
    for chunk in books.main:
        assert max(attempts[chunk.chunk_id]) == chunk.attempt, f"{chunk.chunk_id}: {attempts[chunk.chunk_id]}"


# Killed.


@pytest.mark.timeout(240 + 4 * int(SOAK_SECONDS))
def test_kill_9__one_of_two_workers_every_second__every_chunk_is_done_and_counted_once(site: Site) -> None:
    chance = random.Random(20261116)
    site.split(RangeSource(0, CHUNKS), "tick")
    workers = [site.worker() for _ in range(2)]
    kills = 0
    give_up_at = time.monotonic() + 60 + 2 * SOAK_SECONDS
    while not site.service.queries.fanout(RUN).is_finished:
        assert time.monotonic() < give_up_at, f"not over after {kills} kills: {site.books().fanout.counts}"
        time.sleep(1.0)
        victim = chance.randrange(2)
        workers[victim].kill()
        workers[victim].wait()
        kills += 1
        workers[victim] = site.worker()

    books = site.until_over()
    assert kills >= 3
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert (books.fanout.chunks_completed, books.fanout.chunks_failed) == (CHUNKS, 0)
    assert [chunk.output for chunk in books.main] == [str(number) for number in range(CHUNKS)]
    check_performed(site, books)
    assert books.fanout.counts["lost"] >= 1


def test_kill_9__in_the_middle_of_a_chunk__another_worker_does_it_and_it_counts_once(site: Site) -> None:
    site.split([1, 2], "held")
    first = site.worker(processes=1)
    until(lambda: len(site.journal()) == 1, "the beginning of a chunk")
    chunk_id = site.journal()[0].split()[0]
    first.kill()
    first.wait()
    for name in ("chunk-0000000", "chunk-0000001"):
        for attempt in (1, 2):
            (site.folder / f"go-{name}-{attempt}").touch()
    site.work_off()

    books = site.until_over()
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    chunk = books.chunks[chunk_id]
    assert (chunk.attempt, chunk.output) == (2, "2")
    assert books.attempts[chunk_id][1].outcome is AttemptOutcome.LOST


def test_kill_9__the_splitter_again_and_again__goes_on_where_it_was_while_workers_work(site: Site) -> None:
    chance = random.Random(20261117)
    items = 4_000
    site.worker()
    kills, through = 0, -1
    while True:
        splitter = site.start("split", site.home, RUN, str(items), "4")
        found = site.service.queries.find(RUN)
        target = chance.randrange(300, 1_000) + (0 if found is None else found.split_through)
        while splitter.poll() is None:
            found = site.service.queries.find(RUN)
            if found is not None and found.split_through >= target:
                splitter.kill()
                break
            time.sleep(0.005)
        if splitter.wait() == 0:
            break
        found = site.service.queries.find(RUN)
        assert found is not None
        assert found.split_through > through, "each of them gets further"
        through = found.split_through
        kills += 1

    books = site.until_over()
    assert kills >= 3
    assert [chunk.start for chunk in books.main] == list(range(0, items, 4))
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    check_performed(site, books)


@pytest.mark.parametrize("what", ["hang", "company", "hang in C"])
def test_kill_9__a_worker_whose_children_hang__nothing_of_it_lives_on(site: Site, what: str) -> None:
    site.split([what], "obedient")
    worker = site.worker(processes=1)
    until(lambda: len(site.journal()) == 1, "the beginning of the chunk")
    if what == "company":
        until(lambda: (site.folder / "company").exists(), "the process that the handler starts")
    assert len(site.survivors()) >= 2

    worker.kill()
    worker.wait()

    site.check_no_one_left(5.0)


# Stopped.


def test_zombie__stopped_past_its_lease__its_late_result_is_dropped_and_it_works_on(site: Site) -> None:
    site.split([1, 2], "held")
    (site.folder / "go-chunk-0000001-1").touch()
    zombie = site.worker(processes=1, lease_seconds=3.0)
    until(lambda: len(site.journal()) == 1, "the beginning of the first chunk")
    zombie.send_signal(signal.SIGSTOP)
    try:
        heir = site.worker(processes=1, lease_seconds=3.0)
        until(lambda: any(line.startswith("chunk-0000000 2") for line in site.journal()), "the second attempt")
        (site.folder / "go-chunk-0000000-1").touch()
        zombie.send_signal(signal.SIGCONT)
        # Its child has ended by now, and it says so; the second attempt still runs.
        until(lambda: "result dropped" in site.log_of(zombie), "the end of the zombie's attempt")
        chunk = site.service.queries.chunk(RUN, "chunk-0000000")
        assert (chunk.disposition, chunk.attempt, chunk.output) == (Disposition.RUNNING, 2, None)
        (site.folder / "go-chunk-0000000-2").touch()
        books = site.until_over()
    finally:
        zombie.send_signal(signal.SIGCONT)
    assert books.chunks["chunk-0000000"].output == "2"
    assert (books.fanout.status, books.fanout.counts["lost"]) == (FanoutStatus.SUCCEEDED, 1)
    assert zombie.poll() is None
    assert heir.poll() is None


def test_sigterm__chunks_under_way__are_given_back_unharmed_and_it_exits_zero(site: Site) -> None:
    site.split(list(range(6)), "held")
    (site.folder / "go-chunk-0000000-1").touch()
    worker = site.worker(processes=2)
    until(lambda: len(site.journal()) == 3, "the beginning of three chunks")

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(15) == 0, site.log_of(worker)
    site.check_no_one_left()
    books = site.books()
    assert books.chunks["chunk-0000000"].disposition is Disposition.DONE
    rest = [chunk for chunk in books.main if chunk.chunk_id != "chunk-0000000"]
    # The tries that were cut short do not count.
    assert {(chunk.disposition, chunk.attempt) for chunk in rest} == {(Disposition.QUEUED, 0)}


# Misused.


def test_children__that_die_hang_hog_and_talk_nonsense__cost_their_own_chunk_alone(site: Site) -> None:
    bad = ["abort", "exit", "leave", "kill", "hang", "company", "hang in C", "hog", "misname", "mistype", "surrogate"]
    items = [*["ok"] * 10, *bad, *["ok"] * 10, "speak", *["ok"] * 30]
    site.split(items, "obedient", max_attempts=1, timeout_seconds=4.0, memory_mb=256)

    site.work_off()

    books = site.until_over()
    found = {items[chunk.start]: chunk for chunk in books.main}
    hurt = {c.chunk_id: (c.error_class, c.error) for c in books.main if items[c.start] == "ok" and c.output != '"ok"'}
    assert hurt == {}
    assert found["speak"].disposition is Disposition.DONE
    classes = {what: found[what].error_class for what in bad}
    assert classes == {
        "abort": "CRASH", "exit": "CRASH", "leave": "CRASH", "kill": "OOM", "hang": "TIMEOUT", "company": "TIMEOUT",
        "hang in C": "TIMEOUT", "hog": "OOM", "misname": "InvalidPayloadError", "mistype": "ValidationError",
        "surrogate": "ValueError",
    }  # fmt: skip
    assert {found[what].disposition for what in bad} == {Disposition.DEAD}
    # Each was begun once, and no chunk that was only waiting behind one of them lost a try.
    assert {chunk.attempt for chunk in books.main} == {1}
    assert [line for line, count in Counter(site.journal()).items() if count > 1] == []
    assert books.fanout.status is FanoutStatus.PARTIAL
    site.check_no_one_left()


def test_kill_9__of_the_worker_again_and_again__no_chunk_loses_an_attempt_of_its_own(site: Site) -> None:
    site.split(RangeSource(0, 600), "tick", max_attempts=1)
    for _ in range(6):
        seen = len(site.journal())
        worker = site.worker()
        until(lambda seen=seen: len(site.journal()) > seen, "the first chunk of this worker")  # type: ignore[misc]
        worker.kill()
        worker.wait()
    site.work_off()

    books = site.until_over()

    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert {chunk.disposition for chunk in books.main} == {Disposition.DONE}
    assert books.fanout.counts["lost"] >= 6
    lost = [chunk for chunk in books.main if chunk.lost_attempts]
    assert all(chunk.attempt == chunk.lost_attempts + 1 for chunk in books.main)
    assert sum(chunk.lost_attempts for chunk in lost) == books.fanout.counts["lost"]


def test_chunk__that_kills_its_own_process__uses_up_its_attempts_and_not_those_of_others(site: Site) -> None:
    site.split(["ok", "kill", "abort", "ok"], "obedient", max_attempts=2)
    site.work_off()

    books = site.until_over()

    ends = [(chunk.disposition, chunk.attempt, chunk.lost_attempts, chunk.error_class) for chunk in books.main]
    assert ends == [
        (Disposition.DONE, 1, 0, None),
        (Disposition.DEAD, 2, 0, "OOM"),
        (Disposition.DEAD, 2, 0, "CRASH"),
        (Disposition.DONE, 1, 0, None),
    ]


def test_sigterm__to_the_process_of_a_chunk__is_a_lost_attempt(site: Site) -> None:
    site.split([1], "held", max_attempts=1)
    site.worker()
    until(lambda: bool(site.journal()), "the first attempt")
    os.kill(int(site.journal()[0].split()[2]), signal.SIGTERM)
    (site.folder / "go-chunk-0000000-2").touch()

    (chunk,) = site.until_over().main

    assert (chunk.disposition, chunk.attempt, chunk.lost_attempts) == (Disposition.DONE, 2, 1)


@contextmanager
def child_with(site: Site, monkeypatch: pytest.MonkeyPatch, acts: Sequence[str]) -> Iterator[tuple[Child, list[Job]]]:
    """Give a child, which is killed in the end, and the jobs that it was given."""
    monkeypatch.setenv("FANOUT_TEST_FOLDER", str(site.folder))
    jobs = [
        Job(key, "r", f"chunk-{key:07d}", "g", "main", 1, key, 1, "{}", "k", input=f'["{what}"]')
        for key, what in enumerate(acts)
    ]
    child = Child(f"{mine.MODULE}:obedient", 1, memory_mb=None, access=ANY_HANDLER, now=0.0)
    try:
        child.give(jobs, 0.0)
        yield child, jobs
    finally:
        child.kill(ErrorClass.CRASH)


def received_to_the_end(child: Child) -> list[Answer]:
    received: list[Answer] = []
    with pytest.raises(EOFError):
        while True:
            received += child.answers()
    return received


def test_child__dies_with_answers_unread_and_jobs_unsent__what_it_had_done_counts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death of a child is charged to the chunk that it was at."""
    with child_with(site, monkeypatch, ["ok", "ok", "abort", "ok"]) as (child, jobs):
        until(lambda: len(site.journal()) == 3, "the beginning of the third job")
        # Gone, and its output was not read; then it is given one more.
        assert child._process.wait(10) != 0
        child.give([replace(jobs[3], key=4)], 0.0)
        done = [answer.key for answer in received_to_the_end(child) if isinstance(answer, Done)]
    assert done == [0, 1]
    for key in done:
        child.ended(key, 0.0)
    death = child.death()
    assert [job.key for job in death.jobs] == [2, 3, 4]
    assert "SIGABRT" in death.message


def test_child__nonsense_read_together_with_what_it_had_said__only_what_is_behind_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is slow to read must not take it for one that never was ready, nor run again what was done."""
    with child_with(site, monkeypatch, ["ok", "ok", "nonsense", "ok"]) as (child, _):
        until(lambda: len(site.journal()) == 4, "the beginning of the last job")
        result = received_to_the_end(child)
    assert isinstance(result[0], Ready)
    assert [answer.key for answer in result if isinstance(answer, Done)] == [0, 1]
    assert "answers the worker" in child.death().message


def test_child__that_writes_into_the_channel_of_its_worker__costs_the_chunk_that_did_so(site: Site) -> None:
    site.split([*["ok"] * 20, "nonsense", *["ok"] * 20], "obedient", max_attempts=5)

    site.work_off()

    books = site.until_over()
    assert {chunk.output for chunk in books.main if chunk.start != 20} == {'"ok"'}
    assert {chunk.attempt for chunk in books.main if chunk.start != 20} == {1}
    writer = books.chunks["chunk-0000020"]
    assert (writer.error_class, writer.attempt) == ("CRASH", 5)
    assert "answers the worker" in (writer.error or "")


def test_child__that_answers_what_it_was_not_asked__is_ended_and_the_work_goes_on(site: Site) -> None:
    # The chunk that runs when the message is read fails.
    site.split([*["ok"] * 10, "impostor", *["ok"] * 10], "obedient", max_attempts=5)

    site.work_off()

    books = site.until_over()
    assert {chunk.output for chunk in books.main if chunk.start != 10} == {'"ok"'}
    assert site.log_of(site.processes[0]).count("answers the worker") >= 1


def test_child__copied_by_its_handler__the_copy_neither_answers_nor_outlives_it(site: Site) -> None:
    """As when a pool of processes is left behind by one that has crashed: its end must be seen at once."""
    site.split([*["ok"] * 5, "fork", *["ok"] * 5, "fork and abort"], "obedient", max_attempts=1)

    site.work_off()

    books = site.until_over()
    found = {chunk.start: chunk for chunk in books.main}
    assert {found[place].output for place in range(11)} == {'"ok"'}
    assert {chunk.attempt for chunk in books.main} == {1}
    assert found[11].error_class == "CRASH"
    site.check_no_one_left()


def test_worker__that_was_quick_so_far__leaves_slow_chunks_to_others_who_are_idle(site: Site) -> None:
    """What a worker takes ahead because chunks were quick must not keep slow ones from running elsewhere."""
    site.split(list(range(500)), "tick")
    site.worker()
    until(lambda: site.service.queries.fanout(RUN).is_finished, "the end of the quick ones")
    site.worker()
    order = Order("g", 1, handler=f"{mine.MODULE}:held", policy=mine.policy_of())
    site.service.splitter.split(order, ListSource(list(range(4))), run_id="slow")
    before = len(site.journal())

    until(lambda: len(site.journal()) - before >= 4, "four chunks that run at once in four processes", 10.0)

    workers = {chunk.worker for chunk in site.service.queries.every_chunk("slow")}
    assert len(workers) == 2
    for number in range(4):
        (site.folder / f"go-chunk-{number:07d}-1").touch()
    until(lambda: site.service.queries.fanout("slow").is_finished, "the end of the slow ones")


def test_handler__that_takes_for_ever_to_import__keeps_no_other_waiting(site: Site) -> None:
    """Its items are larger than what a socket takes at once, and its child reads nothing yet."""
    (site.folder / "endless_handlers.py").write_text("import time\ntime.sleep(600)\ndef f(items): ...\n")
    order = Order("g", 1, handler="endless_handlers:f", policy=mine.policy_of())
    site.service.splitter.split(order, ListSource(["x" * 250_000] * 3), run_id="endless")
    site.split(list(range(40)), "tick")
    worker = site.worker(processes=2)

    books = site.until_over(30.0)

    assert books.fanout.status is FanoutStatus.SUCCEEDED
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(15) == 0, site.log_of(worker)


def test_handler__that_cannot_be_loaded__its_chunks_are_left_to_others(site: Site) -> None:
    order = Order("g", 1, handler="tests.acceptance.nowhere:f", policy=mine.policy_of())
    site.service.splitter.split(order, ListSource([1, 2]), run_id="unusable")
    site.split(list(range(5)), "tick")

    site.work_off()

    assert site.until_over().fanout.status is FanoutStatus.SUCCEEDED
    chunks = list(site.service.queries.every_chunk("unusable"))
    assert {(chunk.disposition, chunk.attempt) for chunk in chunks} == {(Disposition.QUEUED, 0)}


# Starved.


def test_disk_full__while_chunks_are_completed__says_so_waits_and_goes_on_when_there_is_room(
    site: Site,
) -> None:
    site.split(RangeSource(0, 800), "tick")
    largest = max(path.stat().st_size for path in site.home.iterdir() if path.is_file())

    worker = site.worker(disk_bytes=largest + 50_000)

    until(lambda: "store condition began" in site.log_of(worker), "the full disk", 60)
    done = site.books().fanout.chunks_total - site.service.queries.counts(site.service.queries.fanout(RUN)).open
    assert done < 800, "the disk was not full"
    assert worker.poll() is None
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, unlimited)
    books = site.until_over()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(15) == 0, site.log_of(worker)
    assert "Traceback" not in site.log_of(worker)
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert {chunk.output for chunk in books.main} == {str(number) for number in range(800)}


class BusyStore(ProcessStore):
    """A store that is busy every few calls, or does what it is asked and does not say so."""

    def __init__(self, store: SqliteStore, chance: random.Random) -> None:
        super().__init__(store)
        self.faults = 0
        self._chance = chance
        self._arm()

    def __getattr__(self, name: str) -> Any:
        # Another thread waits for commits and is woken, and no call of that fails or is counted.
        return getattr(self._store, name) if name in ("wait", "generation", "wake") else super().__getattr__(name)

    def _arm(self) -> None:
        self.fail_in(self._chance.randint(3, 12), crash=False, is_done=self._chance.random() < 0.5)

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return super()._call(name, method, args, kwargs)
        finally:
            if self.fault is None:
                self.faults += 1
                self._arm()


def test_store_busy__again_and_again__the_worker_goes_on_and_everything_is_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks claimed and not reported wait for the end of their lease.
    monkeypatch.setattr(local_worker, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(local_worker, "PAUSE_SECONDS", 0.001)
    monkeypatch.setenv("FANOUT_TEST_FOLDER", str(site.folder))
    site.split(RangeSource(0, 150), "tick", max_attempts=1_000)
    store = BusyStore(site.store, random.Random(20261118))
    clock, ids = site.service.clock, site.service.ids
    maintenance = FanoutMaintenance(store, clock, ids)
    worker = LocalWorker(store, clock, ids, Options(processes=2), maintenance=maintenance, access=ANY_HANDLER)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        books = site.until_over(90.0)
    finally:
        worker.stop(0.0)
        thread.join(20)
    assert not thread.is_alive()
    assert store.faults > 15, store.faults
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert {chunk.output for chunk in books.main} == {str(number) for number in range(150)}
    check_performed(site, books)


def test_cancel__running_chunk_with_a_short_heartbeat__is_stopped_at_the_next_heartbeat(site: Site) -> None:
    site.split(["hang"], "obedient", heartbeat_seconds=0.5)
    site.worker()
    until(lambda: len(site.journal()) == 1, "the start of the chunk")
    site.service.control.cancel(RUN)
    cancelled_at = time.monotonic()

    books = site.until_over(9.0)

    # A chunk without a heartbeat of its own sees the order when its lease is renewed, after ten seconds.
    assert time.monotonic() - cancelled_at < local_worker.LEASE_SECONDS / 3
    assert books.fanout.status is FanoutStatus.CANCELLED


# Given up, and put back.


def test_redrive__221_dead_chunks_after_the_cause_is_repaired__all_of_them_succeed(site: Site) -> None:
    site.split(list(range(221)), "mended", max_attempts=2)
    site.work_off()
    books = site.until_over()
    assert (books.fanout.status, books.fanout.chunks_failed) == (FanoutStatus.FAILED, 221)
    assert {chunk.attempt for chunk in books.main} == {2}
    assert len({chunk.error_fingerprint for chunk in books.main}) == 1

    (site.folder / "mended").touch()
    assert site.service.redriver.redrive(RUN, ChunkSelection(all=True)).redriven == 221
    site.work_off()

    books = site.until_over()
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert (books.fanout.chunks_completed, books.fanout.chunks_failed) == (221, 0)
