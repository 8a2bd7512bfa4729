"""Child protocol: the messages between a local worker and its child processes.

The worker sends jobs; the child runs them in order, reports progress, and answers each job with its outcome.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct


class Job(Struct, frozen=True, tag="job", omit_defaults=True):
    """A chunk to run."""

    key: int
    run_id: str
    chunk_id: str
    group: str
    lane: str
    attempt: int
    start: int
    items: int
    source: str
    input_key: str
    input: str | None = None
    # The indexes of the items to process, if they are not all items of the chunk.
    places: str | None = None
    # Failed items of a completed chunk run again.
    is_rerun: bool = False
    params: str | None = None
    each: bool = False
    item_timeout_seconds: float | None = None


class Ready(Struct, frozen=True, tag="ready"):
    """The handler was loaded. When one of these files changes, it must be loaded again."""

    files: tuple[str, ...] = ()
    # What it uses now, and the kernel's number for its whole life, which includes the memory of the worker.
    memory_mb: int = 0
    most_mb: int = 0


class Imported(Struct, frozen=True, tag="imported"):
    """A job has loaded further modules, from these files."""

    files: tuple[str, ...]


class Unusable(Struct, frozen=True, tag="unusable"):
    """The handler cannot be loaded. When one of these files changes, it may be possible."""

    message: str
    files: tuple[str, ...] = ()


class Progress(Struct, frozen=True, tag="progress"):
    """The number of processed items of a job."""

    key: int
    items_done: int


class Done(Struct, frozen=True, tag="done", omit_defaults=True):
    """A job that succeeded."""

    key: int
    duration_ms: int
    memory_mb: int
    output: str | None = None
    output_key: str | None = None
    item_errors: dict[int, str] = {}
    deferred: list[int] = []
    # What it wrote to standard output and error, shortened.
    printed: str = ""
    # Number of the process, from 1; the pool adds it.
    process: int | None = None


class Failed(Struct, frozen=True, tag="failed", omit_defaults=True):
    """A job that failed."""

    key: int
    duration_ms: int
    error_class: str
    message: str
    is_final: bool = False
    item_errors: dict[int, str] = {}
    # The process was ended from outside, and not because of the job.
    is_lost: bool = False
    traceback: str = ""
    printed: str = ""
    # The peak of its process during the job.
    memory_mb: int | None = None
    process: int | None = None


Answer = Ready | Imported | Unusable | Progress | Done | Failed
JOBS: Final = msgspec.json.Decoder(Job)
ANSWERS: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)
