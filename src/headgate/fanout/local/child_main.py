"""Child process of a local worker: loads the handler and runs jobs until the worker exits."""

from __future__ import annotations

import faulthandler
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.worker.process_channel import ProcessChannel
from headgate.errors import HeadgateError
from headgate.fanout.handlers import Loaded, load, perform
from headgate.fanout.local.captured_output import JobOutput
from headgate.fanout.local.child_process import TRACE_SIGNAL
from headgate.fanout.local.source_files import loaded_files, possible_files
from headgate.fanout.model.child_protocol import JOBS, Imported, Job, Progress, Ready, Unusable
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.peak_memory import most_mb, peak_mb_of
from headgate.file_roots import FileRoots


def main(arguments: list[str]) -> None:
    """Serve the worker at the other end of the socket whose descriptor is the first argument."""
    descriptor, memory_mb, handler = int(arguments[0]), int(arguments[1]), arguments[2]
    access = typed_decode.from_json(arguments[3], LocalAccess)
    outputs = socket.socket(fileno=int(arguments[5]))
    outputs.set_inheritable(False)
    _guard(int(arguments[4]), descriptor)
    # What was printed before a crash must be in the file.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # not replaced yet
    # The traceback of every thread: of one that crashes, and of one that takes too long.
    faulthandler.enable()
    faulthandler.register(TRACE_SIGNAL)
    # Ctrl-C in a terminal reaches the whole process group: the worker decides when a child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ProcessChannel(socket.socket(fileno=descriptor), JOBS)
    channel.close_on_fork()
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    # Started before the handler is loaded: that may take long, and the worker may exit meanwhile.
    threading.Thread(target=_listen, args=(channel, jobs), daemon=True).start()
    try:
        loaded = load(handler, access)
    except HeadgateError as exc:
        files = possible_files(handler.partition(":")[0], [*access.folders, str(Path.cwd())])
        channel.send(Unusable(str(exc), (*files, *loaded_files())))
        return
    if memory_mb:
        limit_bytes = memory_mb * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    files = tuple(dict.fromkeys((*filter(None, [loaded.file]), *loaded_files())))
    most = most_mb(resource.getrusage(resource.RUSAGE_SELF))
    channel.send(Ready(files, memory_mb=peak_mb_of(os.getpid()) or most, most_mb=most))
    _serve(channel, jobs, loaded, access.files, JobOutput(outputs))


def _guard(worker: int, descriptor: int) -> None:
    """Kill this session when the worker exits, even while C code blocks every Python thread.

    A forked process waits for the worker's end. It belongs to this process group and ends with it. It is no child of
    this process, so that all children are those of the handler.
    """
    if os.getppid() != worker:
        os._exit(0)
    if sys.platform != "linux":
        return
    between = os.fork()
    if between != 0:
        os.waitpid(between, 0)
        return
    if os.fork() != 0:
        os._exit(0)
    # Otherwise the worker would never see the end of this process.
    os.close(descriptor)
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(worker), select.POLLIN)
        ended.poll()
    finally:
        os.killpg(0, signal.SIGKILL)


def _serve(
    channel: ProcessChannel[Job],
    jobs: queue.SimpleQueue[Job],
    handler: Loaded,
    files: FileRoots | None,
    output: JobOutput,
) -> None:
    modules_count = len(sys.modules)
    while True:
        job = jobs.get()
        output.begin()
        try:
            answer = perform(handler, job, lambda done, key=job.key: channel.send(Progress(key, done)), files)  # type: ignore[misc]
        except SystemExit:
            # The process ends without a word otherwise.
            traceback.print_exc()
            raise
        printed = output.end()
        if printed:
            answer = replace(answer, printed=printed)
        if len(sys.modules) != modules_count:
            modules_count = len(sys.modules)
            channel.send(Imported(loaded_files()))
        channel.send(answer)


def _listen(channel: ProcessChannel[Job], jobs: queue.SimpleQueue[Job]) -> None:
    """Receive jobs while another one runs; kill the session when the worker is gone, whatever the handler does."""
    while True:
        try:
            for job in channel.receive():
                jobs.put(job)
        except (EOFError, OSError):
            # Includes processes that the handler started: the session is this process's own.
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
