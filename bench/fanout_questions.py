"""Questions about a fan-out: what they cost when it has a thousand chunks, and when it has a million."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.fanout_runs import Fate, filled, opened, working
from bench.measure import ROUNDS, Figure, seconds
from headgate.fanout.insight.error_groups import error_groups
from headgate.fanout.insight.progress import Follower
from headgate.fanout.insight.stuck import stuck
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.fanout.repair.reconcile import ReconcileReport
from headgate.fanout.service import FanoutService
from headgate.serve.http.operations import Call
from headgate.serve.rest.fanout.chunks import ChunkQuery, FanoutChunks
from headgate.serve.rest.fanout.models import ChunkPage
from headgate.store.sqlite.store import SqliteStore

# The larger one takes half a minute to make, and more than a gigabyte of disk until its journal is gone.
FEW, MANY = 1_000, 1_000_000
FLAT_MAX = 1.30

RECONCILED = 100_000
RECONCILE_SECONDS_MAX = 5.0

_DONE, _QUEUED = Disposition.DONE, Disposition.QUEUED

Site = tuple[FanoutService, SqliteStore, str]


def run(many: int = MANY, rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures. `many` is a multiple of a thousand."""
    with ExitStack() as sites:
        small, large = (_site(sites, size, _half_way) for size in (FEW, many))
        cases: tuple[tuple[str, Callable[[FanoutService, str], int], int], ...]
        cases = (("show", _show, 10), ("stuck", _stuck, 40), ("failures", _failures, 40), ("errors", _errors, 40))
        cases += (("chunks --status FAILED", _failed_page, 40), ("chunks --status COMPLETED", _completed_page, 40))
        cases += (("chunks --status CANCELLED", _cancelled_page, 40),)
        flat = [
            _flat(f"{name}: time at {many:,} chunks / at {FEW:,}", (small, large), ask, times, rounds)
            for name, ask, times in cases
        ]
        flat.append(_late(sites, many, rounds))
    return [*flat, *_reconciled(min(many, RECONCILED))]


def _reconciled(chunks: int) -> list[Figure]:
    """Measure a reconciliation of a fan-out at rest, and of one whose chunks a worker runs meanwhile."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder, opened(Path(folder)) as (service, _):
        run_id = filled(Path(folder), service, chunks, lambda place, size: _QUEUED if place >= size // 2 else _DONE)
        idle = _reconcile_figure("at rest", service, run_id, chunks)
        with working(service):
            return [idle, _reconcile_figure("while it runs", service, run_id, chunks)]


def _reconcile_figure(when: str, service: FanoutService, run_id: str, chunks: int) -> Figure:
    reports: list[ReconcileReport] = []
    before = service.queries.counts(service.queries.fanout(run_id)).done
    spent = seconds(lambda: reports.append(service.reconciler.reconcile(run_id)))
    ended = service.queries.counts(service.queries.fanout(run_id)).done - before
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Figure(
        f"reconcile of {chunks:,} chunks, {when}",
        f"{spent:.1f} s",
        f"<= {RECONCILE_SECONDS_MAX:g} s",
        spent <= RECONCILE_SECONDS_MAX,
        f"{reports[0].chunks} rows; {ended} chunks ended meanwhile, {len(reports[0].unsettled)} numbers unsettled",
        f"the process has used at most {memory_mb} MB so far",
    )


def _late(sites: ExitStack, many: int, rounds: int) -> Figure:
    """Measure the list of completed chunks where only the last ones are: the others have failed."""
    last = FEW // 5

    def fate(place: int, size: int) -> Disposition:
        return _DONE if place >= size - last else Disposition.DEAD

    name = f"chunks --status COMPLETED, the last {last} of {many:,} chunks / of {FEW:,}"
    return _flat(name, [_site(sites, size, fate) for size in (FEW, many)], _completed_page, 40, rounds)


def _site(sites: ExitStack, size: int, fate: Fate) -> Site:
    home = Path(sites.enter_context(TemporaryDirectory(prefix="headgate-bench-")))
    service, store = sites.enter_context(opened(home))
    run_id = filled(home, service, size, fate)
    service.new_maintenance().chunk_ended(run_id)
    return service, store, run_id


def _half_way(place: int, size: int) -> Disposition:
    """Of any size 100 chunks are dead, 100 cancelled, 64 running, 20 to be tried again. Of the others half are done."""
    mark, offset = divmod(place, size // FEW)
    if offset == 0 and mark % 10 == 5:
        return Disposition.DEAD
    if offset == 0 and mark % 10 == 7:
        return Disposition.CANCELLED
    # Past the dead and cancelled ones among them, as many of any size.
    if offset == 0 and 500 <= mark < 580:
        return Disposition.RUNNING
    if offset == 0 and 600 <= mark < 624:
        return Disposition.RETRYING
    return Disposition.DONE if mark < FEW // 2 else Disposition.QUEUED


def _flat(
    name: str, sites: Sequence[Site], ask: Callable[[FanoutService, str], int], times: int, rounds: int
) -> Figure:
    answers, calls = zip(*(_asked_once(site, ask) for site in sites), strict=True)
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # Who goes first alternates, so that neither always inherits the other's warm cache.
        for place in (0, 1) if number % 2 else (1, 0):
            spent[place].append(_seconds(sites[place], ask, times))
    grown = [large / small for small, large in zip(*spent, strict=True)]
    middle = statistics.median(grown)
    small_ms, large_ms = (1000 * statistics.median(each) for each in spent)
    return Figure(
        name,
        f"{middle:.2f}",
        f"<= {FLAT_MAX:.2f}",
        middle <= FLAT_MAX,
        f"{calls[0]} and {calls[1]} reads, {answers[0]} and {answers[1]} chunks in the answer",
        f"{small_ms:.2f} ms and {large_ms:.2f} ms; rounds {min(grown):.2f} to {max(grown):.2f}",
        grown,
    )


def _asked_once(site: Site, ask: Callable[[FanoutService, str], int]) -> tuple[int, int]:
    service, store, run_id = site
    before = store.stats.queries + store.stats.reads
    return ask(service, run_id), store.stats.queries + store.stats.reads - before


def _seconds(site: Site, ask: Callable[[FanoutService, str], int], times: int) -> float:
    service, _, run_id = site

    def work() -> None:
        for _ in range(times):
            ask(service, run_id)

    return seconds(work) / times


def _show(service: FanoutService, run_id: str) -> int:
    return Follower(service.store, service.clock, run_id).look().sampled


def _stuck(service: FanoutService, run_id: str) -> int:
    return len(stuck(service.queries, run_id, workers=service.chunk_workers.live()))


def _failures(service: FanoutService, run_id: str) -> int:
    return len(list(service.queries.failures(run_id)))


def _failed_page(service: FanoutService, run_id: str) -> int:
    return _page(service, run_id, ChunkStatus.FAILED)


def _completed_page(service: FanoutService, run_id: str) -> int:
    return _page(service, run_id, ChunkStatus.COMPLETED)


def _cancelled_page(service: FanoutService, run_id: str) -> int:
    return _page(service, run_id, ChunkStatus.CANCELLED)


def _page(service: FanoutService, run_id: str, status: ChunkStatus) -> int:
    """Return the size of the page that the API returns."""
    call = Call({"id": run_id}, ChunkQuery(status=status), None, {}, b"")
    page = FanoutChunks(service).ls(call).body
    assert isinstance(page, ChunkPage)
    return len(page.chunks)


def _errors(service: FanoutService, run_id: str) -> int:
    return error_groups(service.queries, run_id).errors
