"""Command supervisor: a program of the standard library that starts commands and records how they end.

It is run by its path, not imported by the server. The process that the server starts is a fork server: for each command
it forks a supervisor, which shares its memory until it writes, and exits with the server. A supervisor leads a session
of its own, so that neither the end of the server nor that of the fork server reaches it. It starts one command,
enforces its limits, records its end, and exits.

The command writes to a file, not to a pipe of the supervisor: a supervisor that is killed takes nothing with it but the
exit code.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import sys
import time

HEARTBEAT_SECONDS = 10.0
# The beginning of an output is kept when its middle is dropped.
HEAD_BYTES = 65_536
# Smallest output that is bounded: a hole in a file has the granularity of the file system's blocks.
OUTPUT_BYTES_MIN = 4 * HEAD_BYTES
_BLOCK_BYTES = 4_096
_WINDOW_BYTES = 1_048_576
_OUTPUT_CHECK_SECONDS = 1.0
_RECORD_SECONDS = 1.0
_MEMORY_CHECK_SECONDS = 0.5
_HEADER = struct.Struct(">I")
_DESCRIPTORS = 2
_CANCEL, _ENDED = signal.SIGTERM, signal.SIGCHLD
_WAITED = frozenset({_CANCEL, _ENDED})
# fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_PUNCH_HOLE = 0x03


class Order:
    """A command to run: its arguments and environment, its limits, and the folder of its record."""

    def __init__(  # noqa: PLR0913 - one parameter for each field of the request
        self,
        *,
        key: str,
        folder: str,
        notify: str,
        argv: list[str],
        environment: dict[str, str],
        cwd: str | None,
        timeout: float,
        grace: float,
        memory_max: int,
        output_bytes_max: int,
        secrets: list[str],
    ) -> None:
        self.key = key
        self.folder = folder
        self.notify = notify
        self.argv = argv
        self.environment = environment
        self.cwd = cwd
        self.timeout = timeout
        self.grace = grace
        # 0: no limit.
        self.memory_max = memory_max
        self.output_bytes_max = output_bytes_max
        self.secrets = secrets


# Fork server.


def serve(channel: socket.socket) -> None:
    """Fork a supervisor for each request, until the server closes its end."""
    # Reaped by the kernel: the fork server does not wait for supervisors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Objects that exist now are not visited by a collection, so that supervisors do not copy their pages.
    gc.freeze()
    while (request := receive(channel)) is not None:
        order, lock, reply = request
        if os.fork() == 0:
            channel.close()
            _exit_after(order, lock, reply)
        os.close(lock)
        os.close(reply)


def receive(channel: socket.socket) -> tuple[Order, int, int] | None:
    """Return the next request with the descriptors of its lock and its reply pipe; None: the server is gone."""
    head, descriptors, _flags, _address = socket.recv_fds(channel, _HEADER.size, _DESCRIPTORS)
    while head and len(head) < _HEADER.size:
        head += channel.recv(_HEADER.size - len(head))
    if not head:
        return None
    body = bytearray()
    (length,) = _HEADER.unpack(head)
    while len(body) < length:
        part = channel.recv(min(65_536, length - len(body)))
        if not part:
            return None
        body += part
    lock, reply = descriptors
    os.set_inheritable(lock, False)
    os.set_inheritable(reply, False)
    return Order(**json.loads(body)), lock, reply


def _exit_after(order: Order, lock: int, reply: int) -> None:
    status = 1
    try:
        os.setsid()
        Supervisor(order, lock).run(reply)
        status = 0
    finally:
        # Never return into the loop of the fork server.
        os._exit(status)


# Supervisor.


class Supervisor:
    """Runs one command to its end."""

    def __init__(self, order: Order, lock: int) -> None:
        self._order = order
        self._folder = order.folder
        self._lock = lock
        self._pid = 0
        self._output = -1
        self._began = 0.0
        # Why the command is being ended, and when it is killed.
        self._cause = ""
        self._kill_at: float | None = None
        # The size of the output at the last check, and the end of what was dropped from its middle.
        self._size = 0
        self._dropped_to = HEAD_BYTES
        self._output_seconds = _OUTPUT_CHECK_SECONDS

    def run(self, reply: int) -> None:
        """Start the command, report that to `reply`, and supervise it until its end is recorded."""
        # A supervisor that was killed before it starts the command has started none.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        error = self._start()
        with os.fdopen(reply, "wb") as answer:
            answer.write(json.dumps(error or {"pid": self._pid}).encode())
        if error is None:
            self._end(self._supervise())

    def _start(self) -> dict[str, object] | None:
        """Start the command. Return the error if the system refuses; nothing is on record then."""
        try:
            self._output = os.open(self._path("output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            gate, opened = os.pipe()
            errors, failed = os.pipe()
            self._pid = os.fork()
        except OSError as exc:
            return _refusal(exc)
        if self._pid == 0:
            self._become(gate, opened, failed)
        os.close(gate)
        os.close(failed)
        error = self._release(opened)
        with os.fdopen(errors, "rb") as report:
            error = error or json.loads(report.read() or b"null")
        if error is not None:
            os.waitpid(self._pid, 0)
            _remove(self._path("begun"))
        return error

    def _release(self, opened: int) -> dict[str, object] | None:
        """Record the start, and let the process become the command. Return the error if it cannot be recorded."""
        self._began, now = time.monotonic(), time.time()
        begun: dict[str, object] = {
            "pid": self._pid,
            "pid_start": process_start(self._pid),
            "supervisor": os.getpid(),
            "supervisor_start": process_start(os.getpid()),
            "boot_id": boot_id(),
            "started_at_ms": int(now * 1000),
            "ends_by_ms": int(1000 * (now + self._order.timeout + self._order.grace)),
        }
        try:
            # Before the command begins: what is on record may have run, and is not run again.
            write_record(self._path("begun"), begun)
            os.write(opened, b"1")
        except OSError as exc:
            return _refusal(exc)
        finally:
            os.close(opened)
        return None

    def _become(self, gate: int, opened: int, failed: int) -> None:
        """Become the command, once its start is on record."""
        try:
            os.setsid()
            os.close(opened)
            if not os.read(gate, 1):
                os._exit(1)
            self._become_command()
        except OSError as exc:
            os.write(failed, json.dumps(_refusal(exc)).encode())
        finally:
            os._exit(127)

    def _become_command(self) -> None:
        order = self._order
        if order.cwd is not None:
            os.chdir(order.cwd)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        # Held by the command and its descendants: the lock is free when the last of them has ended.
        os.set_inheritable(self._lock, True)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(order.argv[0], order.argv, order.environment)

    def _supervise(self) -> int:
        """Wait for the end of the command, enforce its limits, and return its wait status."""
        order = self._order
        timers = {
            self._on_timeout: self._began + order.timeout,
            self._on_heartbeat: self._began + HEARTBEAT_SECONDS,
            self._on_output_check: self._began + _OUTPUT_CHECK_SECONDS,
        }
        if order.memory_max:
            timers[self._on_memory_check] = self._began + _MEMORY_CHECK_SECONDS
        if os.path.exists(self._path("cancel")):
            self._stop("cancelled")
        while not self._has_ended():
            due_at = min([*timers.values(), *([] if self._kill_at is None else [self._kill_at])])
            found = signal.sigtimedwait(_WAITED, max(0.0, due_at - time.monotonic()))
            if found is not None and found.si_signo == _CANCEL:
                self._stop("cancelled" if os.path.exists(self._path("cancel")) else "terminated")
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = None
            for timer, at in timers.items():
                if now >= at:
                    timers[timer] = now + timer()
        # Not reaped yet, so that its group id cannot have been reused: kill everything it leaves behind.
        self._signal(signal.SIGKILL)
        return os.waitpid(self._pid, 0)[1]

    # Timers: each returns the seconds until its next call.

    def _on_timeout(self) -> float:
        self._stop("timeout")
        return float("inf")

    def _on_heartbeat(self) -> float:
        try:
            os.utime(self._path("begun"))
        except OSError:
            # The home was moved or deleted; the command goes on.
            pass
        return HEARTBEAT_SECONDS

    def _on_output_check(self) -> float:
        # A quiet command is checked less and less often.
        self._output_seconds = _OUTPUT_CHECK_SECONDS if self._bound_output() else min(2 * self._output_seconds, 10.0)
        return self._output_seconds

    def _on_memory_check(self) -> float:
        if resident_bytes(self._pid) > self._order.memory_max:
            self._stop("memory")
        return _MEMORY_CHECK_SECONDS

    def _stop(self, cause: str) -> None:
        """Ask the command to end, and kill it after the grace. The first cause counts."""
        if not self._cause:
            self._cause = cause
            self._kill_at = time.monotonic() + self._order.grace
            self._signal(signal.SIGTERM)

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _end(self, status: int) -> None:
        """Record the end, then report it."""
        ended_at, seconds = time.time(), time.monotonic() - self._began
        self._bound_output()
        ended: dict[str, object] = {
            "exit_code": os.waitstatus_to_exitcode(status),
            "cause": self._cause or "exited",
            "ended_at_ms": int(ended_at * 1000),
            "seconds": round(seconds, 3),
            "is_scrubbed": self._scrub(),
        }
        while not self._is_recorded(ended):
            # The disk is full: the exit code is known here alone, so keep it until there is room.
            time.sleep(_RECORD_SECONDS)
        notify(self._order.notify, self._order.key)

    def _is_recorded(self, ended: dict[str, object]) -> bool:
        try:
            write_record(self._path("ended"), ended)
        except FileNotFoundError:
            # The home is gone, and with it the question.
            return True
        except OSError:
            return False
        return True

    def _scrub(self) -> bool:
        secrets = [text.encode(errors="surrogateescape") for text in self._order.secrets]
        try:
            scrub_file(self._path("output"), secrets, (HEAD_BYTES, self._dropped_to))
        except OSError:
            return False
        return True

    def _bound_output(self) -> bool:
        """Drop the middle of an output beyond its limit, and return whether the output has grown."""
        size, before = os.fstat(self._output).st_size, self._size
        self._size = size
        limit = max(self._order.output_bytes_max, OUTPUT_BYTES_MIN) - HEAD_BYTES
        if size - self._dropped_to > limit:
            try:
                self._drop_to((size - limit // 2) // _BLOCK_BYTES * _BLOCK_BYTES)
            except OSError:
                # No room for the record, or the home is gone: the next check tries again.
                pass
        return size != before

    def _drop_to(self, end: int) -> None:
        # On record before it is dropped: a reader would take the hole for output.
        write_record(self._path("dropped"), {"start": HEAD_BYTES, "end": end})
        with open(self._path("output"), "r+b") as output:
            if punch(output.fileno(), HEAD_BYTES, end - HEAD_BYTES):
                self._dropped_to = end
                return
            # The file system has no holes: the output begins again after its head.
            output.truncate(HEAD_BYTES)
            write_record(self._path("dropped"), {"start": HEAD_BYTES, "end": HEAD_BYTES})

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


# Files and processes.


def write_record(path: str, value: dict[str, object]) -> None:
    """Write a record, whole for every reader, and synced.

    Renamed before it is synced, so that one sync covers both. A power cut in between may leave it empty.
    """
    beside = f"{path}.{os.getpid()}.part"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode())
        os.replace(beside, path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def notify(path: str, key: str) -> None:
    """Report the end of a command to the server, if one listens. A lost report is found by the server's scan."""
    try:
        listener = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(listener, f"{key}\n".encode())
    except OSError:
        pass
    finally:
        os.close(listener)


def punch(descriptor: int, start: int, length: int) -> bool:
    """Free a range of a file, which keeps its size. False: the file system cannot do that."""
    # Imported here: few commands write that much, and it costs memory.
    import ctypes

    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    arguments = (ctypes.c_int(_PUNCH_HOLE), ctypes.c_longlong(start), ctypes.c_longlong(length))
    return bool(fallocate(ctypes.c_int(descriptor), *arguments) == 0)


def scrub_file(path: str, secrets: list[bytes], dropped: tuple[int, int]) -> None:
    """Overwrite secrets in a file with asterisks of the same length. The dropped range holds nothing."""
    longest = max(map(len, secrets), default=0)
    if not longest:
        return
    with open(path, "r+b") as file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            # Each window overlaps the next by the longest secret.
            window = os.pread(file.fileno(), _WINDOW_BYTES + longest, at)
            if any(secret in window for secret in secrets if secret):
                os.pwrite(file.fileno(), masked(window, secrets), at)
            at += _WINDOW_BYTES
            if dropped[0] <= at < dropped[1]:
                at = max(at, dropped[1] - longest)
        os.fsync(file.fileno())


def masked(text: bytes, secrets: list[bytes]) -> bytes:
    """Return a text with its secrets replaced by asterisks of the same length."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, b"*" * len(secret))
    return text


def boot_id() -> str:
    """Return the id of this boot of the machine, or an empty text where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program may contain spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants."""
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            with open(f"/proc/{each}/statm", "rb") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", "rb") as file:
                    waiting += map(int, file.read().split())
        except OSError:
            # It has ended meanwhile.
            continue
    return total


def _refusal(error: OSError) -> dict[str, object]:
    name = error.filename
    return {"errno": error.errno, "filename": None if name is None else os.fsdecode(name)}


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
