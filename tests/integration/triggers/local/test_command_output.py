"""The output of commands: bounded, followed while it grows, and without secrets."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from headgate.triggers.contract import JobState, TriggerOrder
from headgate.triggers.local.command_output import read_output
from headgate.triggers.local.command_records import CommandRecord
from headgate.triggers.local.command_supervisor import HEAD_BYTES, OUTPUT_BYTES_MIN, scrub_file
from headgate.triggers.registry import TriggerKinds
from tests.unit.triggers.rigs import RUN_ID, kinds, order

ENVIRON = {"PATH": "/usr/bin:/bin", "HG_SECRET_TOKEN": "tok-123456"}


def eventually(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at, "not in thirty seconds"
        time.sleep(0.01)


def ended(registry: TriggerKinds, asked: TriggerOrder) -> TriggerOrder:
    registry.start(asked)
    eventually(lambda: registry.poll(asked, {}).state is not JobState.RUNNING)
    return asked


def test_output__beyond_its_limit__keeps_the_beginning_and_the_end_and_says_what_is_missing(tmp_path: Path) -> None:
    code = "for n in range(200_000): print(f'line {n:08d}')"
    registry = kinds(tmp_path)
    asked = ended(registry, order("command", {"command": [sys.executable, "-c", code], "output_bytes_max": 1}))
    found = CommandRecord(tmp_path / "commands", RUN_ID).output.stat()

    assert found.st_size == 200_000 * 14
    assert found.st_blocks * 512 <= OUTPUT_BYTES_MIN + HEAD_BYTES
    first = registry.read_output(asked, offset=0, limit=1_000_000)
    assert first.text.startswith("line 00000000\nline 00000001\n")
    assert first.next_offset == HEAD_BYTES
    rest = registry.read_output(asked, offset=first.next_offset, limit=10_000_000)
    assert rest.text.endswith("line 00199999\n")
    assert "\0" not in rest.text
    assert rest.dropped_bytes == rest.offset - HEAD_BYTES > 0
    assert rest.next_offset == rest.size == found.st_size


def test_output__of_a_running_command__is_followed_by_offset(tmp_path: Path) -> None:
    script = f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo two"
    registry, asked = kinds(tmp_path), order("command", {"command": ["sh", "-c", script]})
    registry.start(asked)
    eventually(lambda: registry.read_output(asked, offset=0, limit=100).text == "one\n")
    first = registry.read_output(asked, offset=0, limit=100)
    nothing = registry.read_output(asked, offset=first.next_offset, limit=100)
    (tmp_path / "go").touch()
    eventually(lambda: registry.read_output(asked, offset=0, limit=1).is_ended)
    second = registry.read_output(asked, offset=first.next_offset, limit=100)

    assert (first.is_ended, nothing.text, nothing.next_offset) == (False, "", first.next_offset)
    assert (second.text, second.is_ended) == ("two\n", True)
    assert registry.read_output(asked, offset=-4, limit=100).text == "two\n"


def test_output__secret_of_a_running_command__is_masked_in_any_part(tmp_path: Path) -> None:
    config = {
        "command": ["sh", "-c", f"printf 'a tok-123456 b tok-1'; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"],
        "environment": {"KEY": "${env:HG_SECRET_TOKEN}"},
    }
    registry, asked = kinds(tmp_path, environ=ENVIRON), order("command", config)
    registry.start(asked)
    eventually(lambda: registry.read_output(asked, offset=0, limit=1).size > 0)
    whole = registry.read_output(asked, offset=0, limit=1000).text
    parts = [registry.read_output(asked, offset=offset, limit=3).text for offset in range(14)]
    (tmp_path / "go").touch()
    eventually(lambda: registry.read_output(asked, offset=0, limit=1).is_ended)

    # The beginning of a secret at the end is held back: the rest may follow.
    assert whole == "a ********** b "
    assert not [part for part in parts if "tok" in part or "123" in part]
    assert registry.read_output(asked, offset=0, limit=1000).text == "a ********** b tok-1"


def test_output__character_across_the_end_of_a_part__comes_with_the_next(tmp_path: Path) -> None:
    registry = kinds(tmp_path)
    asked = ended(registry, order("command", {"command": ["printf", "aé€b"]}))
    text, offset = "", 0
    while True:
        part = registry.read_output(asked, offset=offset, limit=4)
        if not part.text:
            break
        assert "\ufffd" not in part.text
        text, offset = text + part.text, part.next_offset

    assert text == "aé€b"


def test_scrub_file__secret_across_two_windows__is_masked(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"x" * 1_048_573 + b"tok-123456" + b"y" * 10)
    scrub_file(str(path), [b"tok-123456"], (0, 0))

    assert path.read_bytes() == b"x" * 1_048_573 + b"*" * 10 + b"y" * 10


def test_read_output__output_that_began_again__is_read_from_its_head_on(tmp_path: Path) -> None:
    record = CommandRecord(tmp_path, RUN_ID)
    record.create()
    record.output.write_bytes(b"h" * HEAD_BYTES + b"new")
    (record.folder / "dropped").write_text(f'{{"start": {HEAD_BYTES}, "end": {HEAD_BYTES}}}')

    assert read_output(record, lambda: (), offset=9_000_000, limit=100).text == "new"
