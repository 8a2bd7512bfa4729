"""The channels that need no service: a file that is moved aside when it has grown, and the console."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from headgate.errors import TransientError
from headgate.notify.channels.console import ConsoleChannel
from headgate.notify.channels.file import FileChannel
from headgate.notify.enums import Severity
from tests.unit.notify.rig import a_message


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["count"] for line in path.read_text().splitlines()]


def test_file__written__is_a_json_object_a_line_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "alerts.jsonl"
    channel = FileChannel("file", path)

    channel.send(a_message(title="a\nb"))
    channel.send(a_message())

    first, _ = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["at"] == "2025-06-15T15:06:40.000Z"
    assert (first["event"], first["severity"], first["title"]) == ("JOB_FAILED", "critical", "a\nb")
    assert path.stat().st_mode & 0o077 == 0


def test_file__grown_large__is_moved_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "alerts.jsonl"
    channel = FileChannel("file", path, bytes_max=1, kept=2)

    for number in range(5):
        channel.send(a_message(count=number))

    assert numbers(path) == [4]
    assert numbers(tmp_path / "alerts.jsonl.1") == [3]
    assert numbers(tmp_path / "alerts.jsonl.2") == [2]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["alerts.jsonl", "alerts.jsonl.1", "alerts.jsonl.2"]


def test_file__none_is_kept__begins_anew(tmp_path: Path) -> None:
    channel = FileChannel("file", tmp_path / "alerts.jsonl", bytes_max=1, kept=0)
    for number in range(3):
        channel.send(a_message(count=number))

    assert numbers(tmp_path / "alerts.jsonl") == [2]


def test_file__many_threads__no_line_is_torn(tmp_path: Path) -> None:
    channel = FileChannel("file", tmp_path / "alerts.jsonl", bytes_max=20_000, kept=100)
    threads = [threading.Thread(target=lambda: [channel.send(a_message(count=n)) for n in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = [number for path in tmp_path.iterdir() for number in numbers(path)]
    assert sorted(found) == sorted(list(range(50)) * 4)


def test_file__cannot_be_written__says_so_and_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(TransientError, match=r"channel file: .*/file/alerts.jsonl: File exists; free some space"):
        FileChannel("file", tmp_path / "file" / "alerts.jsonl").send(a_message())


@pytest.mark.parametrize("severity", list(Severity))
def test_console__terminal_or_not__is_coloured_or_plain(severity: Severity) -> None:
    plain, terminal = io.StringIO(), Terminal()

    ConsoleChannel("console", plain).send(a_message(severity=severity, count=3))
    ConsoleChannel("console", terminal).send(a_message(severity=severity))

    assert plain.getvalue() == (
        f"2025-06-15T15:06:40.000Z {severity.upper()} orders daily 2026-03-03: the job failed (x3)\n"
        "    error: exit 1\n    -> look at the log\n"
    )
    assert "\x1b[" in terminal.getvalue()
    assert "\x1b[0m" in terminal.getvalue()


def test_console__closed__may_be_tried_again() -> None:
    stream = io.StringIO()
    stream.close()

    with pytest.raises(TransientError, match="console cannot be written"):
        ConsoleChannel("console", stream).send(a_message())
