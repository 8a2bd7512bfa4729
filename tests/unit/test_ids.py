"""Ids sort by the time they were made, never repeat, and say what they name."""

from __future__ import annotations

import os
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import VirtualClock
from headgate.errors import InvalidIdError, UserError
from headgate.ids import IdMaker, check_new_path, made_at_ms

START_SECONDS = 2_208_988_800.0
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_SECONDS)


@pytest.fixture
def ids(clock: VirtualClock) -> IdMaker:
    return IdMaker(clock)


def test_make__a_prefix__gives_the_prefix_and_a_ulid(ids: IdMaker) -> None:
    prefix, _, body = ids.make("run").partition("_")

    assert prefix == "run"
    assert ULID.fullmatch(body)


def test_ulid__bare__has_26_characters_of_the_alphabet(ids: IdMaker) -> None:
    assert ULID.fullmatch(ids.ulid())


@pytest.mark.parametrize("prefix", ["a", "run", "x2", "a" * 16])
def test_make__short_lower_case_word__is_a_prefix(ids: IdMaker, prefix: str) -> None:
    assert ids.make(prefix).startswith(f"{prefix}_")


@pytest.mark.parametrize("prefix", ["", "Run", "2x", "a_b", "a-b", "é", "a" * 17, "run\n"])
def test_make__anything_else__is_refused(ids: IdMaker, prefix: str) -> None:
    with pytest.raises(UserError) as caught:
        ids.make(prefix)

    assert caught.type is UserError


def test_make__within_one_millisecond__increases_strictly(ids: IdMaker) -> None:
    made = [ids.make("run") for _ in range(1_000)]

    assert made == sorted(set(made))


def test_make__as_time_passes__sorts_by_time(ids: IdMaker, clock: VirtualClock) -> None:
    made = []
    for _ in range(100):
        made.append(ids.make("run"))
        clock.advance(0.0005)

    assert made == sorted(set(made))


def test_make__clock_stepped_back__still_increases(ids: IdMaker, clock: VirtualClock) -> None:
    before = ids.make("run")
    clock.step(-3_600)

    after = [ids.make("run") for _ in range(10)]

    assert [before, *after] == sorted({before, *after})


def test_make__by_many_threads__never_repeats(ids: IdMaker) -> None:
    made: list[str] = []

    def work() -> None:
        made.extend([ids.make("run") for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(made)) == 8 * 500


def test_make__two_makers_at_one_time__differ(clock: VirtualClock) -> None:
    first, second = IdMaker(clock), IdMaker(clock)

    assert first.make("run") != second.make("run")


def test_make__same_maker_in_a_forked_process__differs(ids: IdMaker, clock: VirtualClock) -> None:
    ids.ulid()
    # Both draw anew, from what was one state when they parted.
    clock.advance(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, it must not go on as a second run of these tests.
        try:
            os.write(writing, ids.ulid().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        theirs = result.read()
    os.waitpid(child, 0)

    assert ULID.fullmatch(theirs)
    assert ids.ulid() != theirs


@given(st.integers(min_value=1, max_value=281_474_976_710_655))
def test_made_at_ms__of_an_id__is_when_it_was_made(milliseconds: int) -> None:
    ids = IdMaker(VirtualClock(milliseconds / 1000))
    expected = int(milliseconds / 1000 * 1000)

    assert made_at_ms(ids.make("run")) == expected
    assert made_at_ms(IdMaker(VirtualClock(milliseconds / 1000)).ulid()) == expected


def test_made_at_ms__id_of_another_system__reads_its_ulid() -> None:
    # 01ARYZ6S41 is the example of the ULID specification: 1469918176385 ms.
    assert made_at_ms("evd-01ARYZ6S41DEADBEEFDEADBEEF") == 1_469_918_176_385


@pytest.mark.parametrize(
    "identifier",
    ["", "run_", "run_123", "run_01arz3ndektsv4rrffq69g5fav", "run_81ARYZ6S41TSV4RRFFQ69G5FAV", "I" * 26, "U" * 26],
)
def test_made_at_ms__not_an_id__is_refused(identifier: str) -> None:
    with pytest.raises(UserError) as caught:
        made_at_ms(identifier)

    assert caught.type is UserError


@pytest.mark.parametrize("path", ["a", "a/b", "a.b/c-d", "rows/s", ".hidden"])
def test_check_new_path__path__is_returned(path: str) -> None:
    assert check_new_path("metric", path) == path


@pytest.mark.parametrize("address", ["airflow://host/dag.task", "team/job%2F", "/a", "a/"])
def test_check_new_path__address_of_another_system__is_foreign_only(address: str) -> None:
    assert check_new_path("producer_id", address, is_foreign=True) == address
    with pytest.raises(InvalidIdError, match="metric"):
        check_new_path("metric", address)


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize(
    "path", ["", " ", " a", "..", "a/../b", "%2e%2e", "a%2f..", "%2E%2E/x", "a\\b", "a%5cb", "a\nb", "a%00b", "x" * 201]
)
def test_check_new_path__that_no_url_reaches__is_refused_and_names_the_field(path: str, is_foreign: bool) -> None:
    with pytest.raises(InvalidIdError, match=r"metric .*use 1 to 200 printable characters"):
        check_new_path("metric", path, is_foreign=is_foreign)
