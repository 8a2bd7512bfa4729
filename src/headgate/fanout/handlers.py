"""Handlers: loads the user's function, and calls it with a chunk.

A handler is `module:function`. It receives the items of a chunk as a list (a range of bytes as bytes), or a `Work` if
its parameter is annotated so, or with `each` one item per call.
"""

from __future__ import annotations

import importlib
import inspect
import re
import signal
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model import payload
from headgate.durable.model.failures import NonRetryable
from headgate.errors import DefinitionError, NotFoundError, PayloadTooLargeError
from headgate.fanout.handler_modules import ForeignModuleError, import_module, is_own_function, member
from headgate.fanout.model.child_protocol import Done, Failed, Job
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.peak_memory import PeakMemory
from headgate.fanout.model.sources import Piece, read_items
from headgate.fanout.model.traces import formatted_traceback
from headgate.file_roots import FileRoots

Handler = Callable[[Any], Any]
_NAME: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
OUTPUT_BYTES_MAX: Final = 256 * 1024
_peak: Final = PeakMemory()
PROGRESS_SECONDS: Final = 0.5


class Work:
    """A chunk as its handler receives it."""

    def __init__(self, job: Job, items: Sequence[Any], places: Sequence[int], say: Callable[[int], None]) -> None:
        self.run_id = job.run_id
        self.chunk_id = job.chunk_id
        self.group = job.group
        self.lane = job.lane
        self.attempt = job.attempt
        self.params: dict[str, Any] = {} if job.params is None else msgspec.json.decode(job.params)
        self.items = items
        # The index of each item within the fan-out.
        self.places = places
        self.input_key = job.input_key
        self.output_key: str | None = None
        self.item_errors: dict[int, str] = {}
        self.deferred: list[int] = []
        self._is_rerun = job.is_rerun
        self._say = say
        self._said_at = perf_counter()

    def progress(self, items_done: int) -> None:
        """Report the number of processed items. Cheap: forwarded about twice a second."""
        now = perf_counter()
        if now - self._said_at >= PROGRESS_SECONDS:
            self._said_at = now
            self._say(items_done)

    def defer(self, place: int) -> None:
        """Defer an item, given by its index in `places`, to the slow lane.

        Raises `ValueError` for an index that is not in `places`, for a redriven item, and in the slow lane itself.
        """
        if self.lane == "slow":
            raise ValueError(f"item {place}: the slow lane cannot defer items further")
        if self._is_rerun:
            raise ValueError(f"item {place}: it was redriven, and cannot be deferred")
        self._check(place)
        self.deferred.append(place)

    def item_error(self, place: int, error: BaseException | str) -> None:
        """Record the failure of one item; the others may succeed. Raises `ValueError` as `defer` does."""
        self._check(place)
        self.item_errors[place] = error if isinstance(error, str) else _described(error)

    def _check(self, place: int) -> None:
        if place not in self.places:
            raise ValueError(f"item {place} is not in this chunk; it has {list(self.places[:3])} … of the fan-out")


class Loaded(Struct, frozen=True):
    """A loaded handler."""

    function: Handler
    takes_work: bool
    # The module's file: a change to it means that the handler must be loaded again.
    file: str = ""


class _ItemTimeoutError(BaseException):
    """Raised in the handler when one item takes too long. Not an `Exception`, so that handlers do not catch it."""


def load(name: str, access: LocalAccess | None = None) -> Loaded:
    """Load the handler `module:function`. Raises `DefinitionError` if it cannot be used.

    An operator may name any function; `access` is then None. A name that comes with a fan-out, which every client of
    the API can create, must be a public function of the project or of an allowed package: otherwise it could be
    `os:system`.
    """
    module_name, _, path = name.partition(":")
    if not _NAME.fullmatch(name):
        raise DefinitionError(f"handler {name!r}: give it as module:function")
    limited = None if access is None or access.is_any_handler else access
    _extend_path(() if limited is None else limited.folders)
    try:
        module = importlib.import_module(module_name) if limited is None else import_module(module_name, limited)
    except ForeignModuleError as exc:
        raise DefinitionError(f"handler {name!r}: {exc}") from exc
    except Exception as exc:
        raise DefinitionError(
            f"handler {name!r}: module {module_name} cannot be imported ({_described(exc)}); "
            "run from the folder that has it, or install it"
        ) from exc
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None) if limited is None else member(found, part, module_name)
    if not callable(found):
        raise DefinitionError(f"handler {name!r}: {module_name} has no function {path}")
    if limited is not None and not is_own_function(found, module_name, limited):
        raise DefinitionError(
            f"handler {name!r}: it is not a function that {module_name} defines; name the module that defines it"
        )
    return Loaded(found, _takes_work(name, found), str(getattr(sys.modules[module_name], "__file__", None) or ""))


def _extend_path(folders: Sequence[str]) -> None:
    """Make modules of the project and of the current folder importable, the project's first."""
    for folder in reversed([*folders, str(Path.cwd())]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _takes_work(name: str, function: Handler) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError):
        return False
    if not parameters:
        raise DefinitionError(f"handler {name!r}: it must take the items of a chunk as its parameter")
    return hints.get(parameters[0].name) is Work


def perform(
    handler: Loaded,
    job: Job,
    say: Callable[[int], None],
    files: FileRoots | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Done | Failed:
    """Call the handler with a job, and return the outcome. Raises only errors that end the process.

    Input files must be below `files`; None: anywhere. Once `should_stop` holds, no further item is started with `each`:
    those that are left are deferred, and redriven ones stay failed.
    """
    _peak.begin()
    started = perf_counter()
    work: Work | None = None
    try:
        work = _work(job, say, files)
        output = _each(handler, work, job, should_stop) if job.each else _whole(handler, work)
        done = Done(
            key=job.key,
            duration_ms=_since_ms(started),
            memory_mb=_memory_mb(started),
            output=output,
            output_key=work.output_key,
            item_errors={place: _text(text) for place, text in work.item_errors.items()},
            deferred=work.deferred,
        )
        # Handlers can set these to anything: convert, so that a bad type fails here and not in the worker.
        return typed_decode.convert(msgspec.to_builtins(done), Done)
    except MemoryError as exc:
        return _failed(job, started, exc, work, error_class="OOM")
    except (NonRetryable, NotFoundError) as exc:
        # Declared final by the handler, or the input is missing: a retry cannot succeed.
        return _failed(job, started, exc, work, is_final=True)
    except Exception as exc:  # noqa: BLE001 - whatever the user's code raises is how the chunk ended
        return _failed(job, started, exc, work)


def _work(job: Job, say: Callable[[int], None], files: FileRoots | None) -> Work:
    places: Sequence[int] = range(job.start, job.start + job.items)
    if job.places is not None:
        places = typed_decode.from_json(job.places, list[int])
    source = msgspec.json.decode(job.source) if job.source else {}
    items = read_items(source, Piece(job.start, job.items, job.input_key, job.input), places, files)
    return Work(job, items, places, say)


def _whole(handler: Loaded, work: Work) -> str | None:
    if handler.takes_work:
        return _output(handler.function(work))
    is_bytes = len(work.items) == 1 and isinstance(work.items[0], bytes)
    return _output(handler.function(work.items[0] if is_bytes else list(work.items)))


def _each(handler: Loaded, work: Work, job: Job, should_stop: Callable[[], bool] | None) -> str | None:
    results: list[Any] = []
    first: Exception | None = None
    for number, (place, item) in enumerate(zip(work.places, work.items, strict=True)):
        if should_stop is not None and number and work.lane != "slow" and should_stop():
            for left in work.places[number:]:
                if job.is_rerun:
                    # It cannot be deferred: it stays failed, and the results so far are kept.
                    work.item_error(left, "TIMEOUT: its worker had no time left; redrive it again")
                else:
                    work.defer(left)
                results.append(None)
            break
        try:
            results.append(_one(handler.function, item, job.item_timeout_seconds))
        except _ItemTimeoutError:
            results.append(None)
            if job.lane == "slow":
                work.item_error(place, f"TIMEOUT: longer than {job.item_timeout_seconds:g} s")
            else:
                work.defer(place)
        except MemoryError:
            raise
        except Exception as exc:  # noqa: BLE001 - one bad item must not fail the others
            first = first or exc
            results.append(None)
            work.item_error(place, exc)
            # With what the handler has printed: an item has no log of its own.
            sys.stderr.write(f"item {place} failed:\n{formatted_traceback(exc)}\n")
        work.progress(number + 1)
    if first is not None and len(work.item_errors) == len(work.items) and not job.is_rerun:
        # Every item failed: fail the attempt with the first error, so that it is retried. The items of a rerun have
        # failed before, and others of their chunk have not.
        raise first
    return _output(results) if any(result is not None for result in results) else None


def _one(function: Handler, item: Any, limit_seconds: float | None) -> Any:  # noqa: ANN401 - the user's own
    if limit_seconds is None:
        return function(item)
    previous = signal.signal(signal.SIGALRM, _raise_item_timeout)
    signal.setitimer(signal.ITIMER_REAL, limit_seconds)
    try:
        return function(item)
    finally:
        # Always: a pending alarm would interrupt the next item.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _raise_item_timeout(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _ItemTimeoutError


def _output(value: Any) -> str | None:  # noqa: ANN401 - whatever JSON can say
    if value is None:
        return None
    text = bytes(payload.encode(value, what="the output"))
    if len(text) > OUTPUT_BYTES_MAX:
        raise PayloadTooLargeError(
            f"the output has {len(text)} bytes as JSON, at most {OUTPUT_BYTES_MAX}; "
            "write it to a file or bucket, and set output_key"
        )
    return text.decode()


def _failed(
    job: Job,
    started: float,
    error: Exception,
    work: Work | None,
    *,
    error_class: str | None = None,
    is_final: bool = False,
) -> Failed:
    item_errors = work.item_errors if work is not None and isinstance(work.item_errors, dict) else {}
    # Handlers can put anything there: malformed entries are dropped.
    errors = {
        place: _text(text) for place, text in item_errors.items() if isinstance(place, int) and isinstance(text, str)
    }
    message = _message(error) if error_class is None else _described(error)
    return Failed(
        key=job.key,
        duration_ms=_since_ms(started),
        error_class=error_class or type(error).__name__,
        message=_text(message),
        is_final=is_final,
        item_errors=errors,
        traceback=formatted_traceback(error),
        memory_mb=_memory_mb(started),
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as exc:  # noqa: BLE001 - the error's own __str__ fails
        return f"its message is unavailable ({type(exc).__name__})"


def _text(text: str) -> str:
    """Return the text truncated and with lone surrogates replaced, so that it can be sent."""
    return text[:4096].encode("utf-8", "replace").decode()


def _since_ms(started: float) -> int:
    return round(1000 * (perf_counter() - started))


def _memory_mb(started: float) -> int:
    return _peak.mb(1000 * (perf_counter() - started))


def _described(error: BaseException) -> str:
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
