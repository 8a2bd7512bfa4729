"""Channels of processes: messages arrive whole and in order, and nonsense is the end of what is received."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.durable.worker.process_channel import ProcessChannel, pack
from headgate.fanout.model.child_protocol import ANSWERS as READ_ANSWERS
from headgate.fanout.model.child_protocol import JOBS, Answer, Done, Failed, Job, Progress, Ready, Unusable

JOB = Job(1, "r", "chunk-0000000", "g", "main", 1, 0, 2, "{}", "k", input='["a","\u6f22"]', each=True)
ANSWERS: list[Answer] = [
    Ready(), Unusable("no such module"), Progress(1, 5), Done(1, 7, 30, output="[1]", item_errors={3: "bad"}),
    Failed(2, 7, "ValueError", "boom", True, {4: "bad"}), Done(3, 0, 0, deferred=[1, 2]),
]  # fmt: skip

Ends = tuple[ProcessChannel[Answer], ProcessChannel[Job], socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A worker's end, a child's end, and the child's bare socket."""
    ours, theirs = socket.socketpair()
    yield ProcessChannel(ours, READ_ANSWERS), ProcessChannel(theirs, JOBS), theirs
    ours.close()
    theirs.close()


def received(channel: ProcessChannel[Answer], count: int) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < count:
        found += channel.receive()
    return found


def test_channel__every_kind_of_message__arrives_as_it_was(ends: Ends) -> None:
    worker, child, _ = ends
    child.send(*ANSWERS)
    worker.send(JOB)

    assert received(worker, len(ANSWERS)) == ANSWERS
    assert child.receive() == [JOB]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=200))
def test_channel__cut_anywhere_on_the_way__arrives_whole(ends: Ends, cuts: list[int]) -> None:
    worker, _, wire = ends
    text = b"".join(map(pack, ANSWERS))
    found: list[Answer] = []
    at = 0
    for cut in cuts:
        if part := text[at : at + cut]:
            wire.sendall(part)
            found += worker.receive()
        at += cut
    if text[at:]:
        wire.sendall(text[at:])
        found += received(worker, len(ANSWERS) - len(found))

    assert found == ANSWERS


def test_channel__a_message_of_megabytes__arrives_whole(ends: Ends) -> None:
    worker, child, _ = ends
    large = msgspec.structs.replace(JOB, input="x" * 20_000_000)
    sender = threading.Thread(target=worker.send, args=(large, JOB))
    sender.start()
    found: list[Job] = []
    while len(found) < 2:
        found += child.receive()
    sender.join(10)

    assert found == [large, JOB]


@pytest.mark.timeout(30)
def test_post__to_one_that_does_not_read__never_waits(ends: Ends) -> None:
    """A child that hangs, or is still importing its handler, must not hold up the worker and all other children."""
    worker, child, _ = ends
    large = msgspec.structs.replace(JOB, input="x" * 300_000)
    worker.post(*[large] * 30)
    assert worker.is_full
    worker.flush()

    found: list[Job] = []

    def read() -> None:
        while len(found) < 30:
            found.extend(child.receive())

    reader = threading.Thread(target=read)
    reader.start()
    while worker.is_full:
        worker.flush()
    reader.join(20)
    assert found == [large] * 30


def test_send__from_several_threads_at_once__no_message_is_cut_by_another(ends: Ends) -> None:
    worker, child, _ = ends

    def speak(number: int) -> None:
        for place in range(20):
            child.send(Failed(number, place, "E", chr(ord("a") + number) * 50_000))

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    found = received(worker, 80)
    for thread in threads:
        thread.join(10)

    assert sorted((answer.key, answer.duration_ms) for answer in found if isinstance(answer, Failed)) == [
        (number, place) for number in range(4) for place in range(20)
    ]


def test_channel__the_other_end_is_gone__what_it_had_said_is_received_first(ends: Ends) -> None:
    worker, child, wire = ends
    child.send(Done(1, 2, 3))
    wire.close()

    assert worker.receive() == [Done(1, 2, 3)]
    with pytest.raises(EOFError):
        worker.receive()
    with pytest.raises(BrokenPipeError):
        for _ in range(10):
            worker.send(JOB)


NONSENSE = [
    b"\xff" * 64,
    *(
        struct.pack("!I", len(body)) + body
        for body in (
            b"", b"{}", b"[]", b'{"type":"done"}', b'{"type":"stranger"}', b"\xff", b'{"type":"done","key":"x"}',
            b'{"type":"unusable","message":"caf\xe9"}', b'{"type":"ready","more":' + b"[" * 100_000,
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_received__nonsense__is_the_end_of_what_is_received(ends: Ends, nonsense: bytes) -> None:
    worker, child, wire = ends
    wire.sendall(nonsense)

    with pytest.raises(EOFError):
        worker.receive()
    assert worker.is_corrupt
    # The start of the next message is unknown.
    child.send(Done(1, 2, 3))
    with pytest.raises(EOFError):
        worker.receive()


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_received__nonsense_behind_messages_that_came_with_it__those_are_received_first(
    ends: Ends, nonsense: bytes
) -> None:
    worker, _, wire = ends
    wire.sendall(pack(Ready()) + pack(Done(1, 2, 3)) + nonsense)

    assert received(worker, 2) == [Ready(), Done(1, 2, 3)]
    with pytest.raises(EOFError):
        worker.receive()


def test_received__nonsense_from_the_other_side__is_the_end_too(ends: Ends) -> None:
    worker, child, _ = ends
    worker.send(JOB)
    worker._end.sendall(b"\xff" * 64)

    assert child.receive() == [JOB]
    with pytest.raises(EOFError):
        child.receive()


# In a process of its own: that of the tests has threads, and what they hold when it is forked is held for good.
_FORKED: Final = """
import os, socket
from headgate.durable.worker.process_channel import ProcessChannel
from headgate.fanout.model.child_protocol import ANSWERS, JOBS, Done

ours, theirs = socket.socketpair()
worker, child = ProcessChannel(ours, ANSWERS), ProcessChannel(theirs, JOBS)
child.close_on_fork()
with child._sending:
    copy = os.fork()
    if copy == 0:
        try:
            child.send(Done(1, 2, 3))
        except OSError as exc:
            print(exc, flush=True)
        os._exit(0)
os.waitpid(copy, 0)
child.send(Done(2, 2, 3))
print(worker.receive())
"""


@pytest.mark.integration
def test_close_on_fork__a_fork__cannot_speak_even_if_it_was_made_in_the_middle_of_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=30, check=True)

    refused, output = done.stdout.splitlines()
    assert "only the process itself" in refused
    assert output == f"[{Done(2, 2, 3)}]"


def test_close_on_fork__a_program_that_is_started__does_not_have_the_descriptor(ends: Ends) -> None:
    _, child, wire = ends
    wire.set_inheritable(True)

    def has_it() -> bool:
        return subprocess.run(["test", "-e", f"/proc/self/fd/{wire.fileno()}"], close_fds=False).returncode == 0

    assert has_it()
    child.close_on_fork()
    assert not has_it()
