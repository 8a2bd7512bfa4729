"""Chunk worker process: runs chunks, without ports, with the same drain as the server."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from contextlib import closing

import structlog
from msgspec import Struct

from headgate.bootstrap.key_check import check_keys
from headgate.bootstrap.store import AppService, open_store
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.errors import DefinitionError
from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.local.child_process import READY_SECONDS_MAX, Child
from headgate.fanout.local.worker import Options
from headgate.fanout.model.child_protocol import Unusable
from headgate.fanout.model.local_access import ANY_HANDLER
from headgate.fanout.model.rows import Fanout
from headgate.serve.process import Stop
from headgate.settings import Settings

_GRACE_SHARE = 0.7
_log = structlog.get_logger(__name__)


class Worked(Struct, frozen=True):
    """Result of a worker: completed and failed chunks, and handlers that could not be loaded."""

    worker: str
    completed: int
    failed: int
    unusable: dict[str, str]


def run(
    settings: Settings, options: Options, *, clock: Clock, until_idle: bool, announce: Callable[[str], None]
) -> Worked:
    """Run chunks until a signal requests the stop, or with `until_idle` until none is left.

    Raises `DefinitionError` before the first claim if the handler cannot be loaded, and `NotFoundError` for an unknown
    fan-out.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    if options.handler is not None:
        check_handler(options.handler, clock)
    opened = open_store(settings, clock)
    with closing(opened.store):
        opened.store.check_health()
        check_keys(opened)
        # Publishes the events of fan-outs that end here; it runs no workflow.
        fanouts = AppService(App("headgate"), opened, clock).fanouts
        if options.run_id is not None:
            _check_queue(fanouts.queries.fanout(options.run_id))
        worker = fanouts.worker(options)
        stop.on_request(lambda: worker.stop(settings.drain_seconds * _GRACE_SHARE))
        announce(f"headgate chunk worker ready  {_describe(options)}  home={settings.home}")
        worker.run(until_idle=until_idle)
    _log.info("stopped", action="chunks.stop", completed=worker.done, failed=worker.failed)
    return Worked(worker.name, worker.done, worker.failed, worker.unusable)


def _check_queue(fanout: Fanout) -> None:
    """Raise `DefinitionError` for a fan-out whose chunks are messages of a queue: this worker receives none."""
    if fanout.queue_url is not None:
        raise DefinitionError(
            f"fan-out {fanout.run_id}: its chunks are messages of {fanout.queue_url}, which this worker does not "
            "receive; start a consumer of the queue"
        )


def check_handler(handler: str, clock: Clock) -> None:
    """Raise `DefinitionError` if a handler cannot be loaded in a child process."""
    child = Child(handler, 1, memory_mb=None, access=ANY_HANDLER, now=clock.monotonic())
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.channel, selectors.EVENT_READ)
            if not selector.select(READY_SECONDS_MAX):
                raise DefinitionError(f"handler {handler!r}: not loaded within {READY_SECONDS_MAX:g} s")
        answers = child.answers()
    except EOFError as exc:
        raise DefinitionError(f"handler {handler!r}: {child.death().message} while loading") from exc
    finally:
        child.kill(ErrorClass.CRASH)
        child.death()
    for answer in answers:
        if isinstance(answer, Unusable):
            raise DefinitionError(answer.message)


def _describe(options: Options) -> str:
    facts = {"processes": options.processes, "handler": options.handler, "group": options.group, "run": options.run_id}
    facts["lane"] = options.lane
    return "  ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
