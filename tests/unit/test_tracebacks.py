"""Tracebacks: the frames of the user's code stand out."""

from __future__ import annotations

from pathlib import Path

import headgate
from headgate.tracebacks import marked_frames, own_frames

ENGINE = f'  File "{Path(headgate.__file__).parent}/durable/engine/engine.py", line 258, in _try\n    self.go()'
OWN = '  File "/srv/shop/app.py", line 12, in audit\n    read()\n    ^^^^^^'
LIBRARY = '  File "/usr/lib/python3.11/pathlib.py", line 1058, in read_text\n    open()'


def test_own_frames__among_those_of_others__are_kept() -> None:
    assert own_frames(f"{ENGINE}\n{OWN}\n{LIBRARY}") == OWN


def test_own_frames__none__all_are_shown() -> None:
    assert own_frames(f"{ENGINE}\n{LIBRARY}") == f"{ENGINE}\n{LIBRARY}"


def test_marked_frames__of_own_and_other_code__own_lines_have_a_mark() -> None:
    lines = marked_frames(f"{ENGINE}\n{OWN}").splitlines()

    assert [line[:2] for line in lines] == ["  ", "  ", "> ", "> ", "> "]
    assert [line[2:] for line in lines] == f"{ENGINE}\n{OWN}".splitlines()


def test_own_frames__of_a_text_without_frames__is_the_text() -> None:
    assert own_frames("disk full") == "disk full"
