"""Reading values as types: from many threads at once, and in all else as msgspec does it."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest

from headgate import typed_decode

# Four threads read, at once, a type that was not decoded before, and a generic one that is equal to an earlier one
# and yet another object. With plain msgspec the interpreter dies of SIGSEGV in one of the first rounds.
RACE = '''
import sys
import threading
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from headgate import typed_decode

ROUNDS = 300
FRESH = """
class Inner(msgspec.Struct, frozen=True):
    x: "Annotated[int, msgspec.Meta(ge=0)]" = 0
    y: "dict[str, list[int]] | None" = None

class Outer(msgspec.Struct, frozen=True):
    a: "int"
    b: "Inner"
    c: "list[Inner]"
    d: "dict[str, Inner]" = {}
    e: "Literal['x', 'y']" = "x"
"""
VALUE = {"a": 1, "b": {"x": 1, "y": {"k": [1]}}, "c": [{"x": 2}], "d": {"q": {}}}
JSON, MSGPACK = msgspec.json.encode(VALUE), msgspec.msgpack.encode(VALUE)
READS = [
    lambda kind: typed_decode.convert(VALUE, kind),
    lambda kind: typed_decode.from_json(JSON, kind),
    lambda kind: typed_decode.from_msgpack(MSGPACK, kind),
    lambda kind: typed_decode.json_decoder(kind).decode(JSON),
    lambda kind: typed_decode.msgpack_decoder(kind).decode(MSGPACK),
]
T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    first: "T"
    items: "dict[str, list[T]]"
    more: "Literal[1, 2] | None" = None


def fresh():
    exec(FRESH, globals())
    round_of_types[:] = [Outer, Page[int].copy_with((int,))]


def read(nth):
    try:
        for round in range(ROUNDS):
            together.wait()
            outer, page = round_of_types
            assert typed_decode.convert({"first": 1, "items": {"a": [3]}}, page).items == {"a": [3]}
            assert READS[(nth + round) % len(READS)](outer).c[0].x == 2
        finished.append(nth)
    except BaseException:
        together.abort()
        raise


sys.setswitchinterval(1e-6)
round_of_types, finished = [], []
together = threading.Barrier(4, action=fresh)
threads = [threading.Thread(target=read, args=(nth,)) for nth in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
sys.exit(0 if len(finished) == 4 else 3)
'''


def test_reading__types_that_four_threads_see_for_the_first_time_at_once__all_are_read() -> None:
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", RACE], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


# A thread describes a type whose annotation takes its time; meanwhile the main thread forks, and the child reads it.
FORK = """
import os
import signal
import threading
import time

import msgspec

from headgate import typed_decode

begun = threading.Event()


def slow():
    begun.set()
    time.sleep(0.2)
    return int


class Slow(msgspec.Struct):
    a: "slow()"


reading = threading.Thread(target=typed_decode.convert, args=({"a": 1}, Slow))
reading.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(5)
    os._exit(typed_decode.convert({"a": 1}, Slow).a)
reading.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_reading__in_a_child_forked_while_a_type_was_described__goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (1, "")


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


def test_reading__what_does_not_fit__the_error_of_msgspec_each_time() -> None:
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.x`"):
            typed_decode.convert({"x": "1"}, Point)
        with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\[0\].x`"):
            typed_decode.from_json(b'[{"x": "1"}]', list[Point])
        with pytest.raises(msgspec.ValidationError, match="Object missing required field `x`"):
            typed_decode.from_msgpack(msgspec.msgpack.encode({}), Point)
        with pytest.raises(msgspec.DecodeError, match="truncated"):
            typed_decode.from_json("{", Point)
        with pytest.raises(TypeError, match="is not supported"):
            typed_decode.convert(1, "no type")


def test_convert__options__are_those_of_msgspec() -> None:
    def halved(kind: type, value: Any) -> Any:
        return kind(value / 2)

    assert typed_decode.convert({"x": "1"}, Point, strict=False) == Point(1)
    assert typed_decode.convert({"1": 2}, dict[int, int], str_keys=True) == {1: 2}
    assert typed_decode.convert(4, complex, dec_hook=halved) == 2 + 0j


def test_reading__a_type_that_cannot_be_hashed__is_read() -> None:
    many = Annotated[list[Point], {"not": "hashable"}]

    assert [typed_decode.from_json(b'[{"x": 1}]', many) for _ in range(2)] == [[Point(1)], [Point(1)]]
    assert typed_decode.json_decoder(many).decode(b"[]") == []
