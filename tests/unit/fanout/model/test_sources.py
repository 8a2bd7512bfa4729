"""Sources: every item comes back as it was given, from wherever a split begins, or is refused aloud."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import DefinitionError, InvalidPayloadError, NotFoundError, PayloadTooLargeError
from headgate.fanout.model.sources import (
    BytesSource,
    LinesSource,
    ListSource,
    Piece,
    RangeSource,
    Source,
    check_input,
    file_mark,
    read_items,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


def items_of(source: Source, piece: Piece) -> list[Any]:
    return read_items(source.describe(), piece, range(piece.start, piece.start + piece.items))


def check_pieces(source: Source, size: int, start: int, count: int) -> list[Piece]:
    """The pieces from `start` on follow each other without a gap, each of the size that was asked for."""
    pieces = list(source.pieces(size, start))
    at = start
    for piece in pieces:
        assert piece.start == at
        assert 1 <= piece.items <= size
        at += piece.items
    assert at == max(start, count)
    assert all(piece.items == size for piece in pieces[:-1])
    assert len({piece.input_key for piece in pieces}) == len(pieces)
    return pieces


# In memory.


@given(st.lists(JSON, max_size=30), st.integers(1, 12), st.data())
def test_list__any_items_and_sizes__come_back_as_they_were(items: list[Any], size: int, data: st.DataObject) -> None:
    source = ListSource(items)
    start = size * data.draw(st.integers(0, len(items) // size))
    pieces = check_pieces(source, size, start, len(items))

    assert [item for piece in pieces for item in items_of(source, piece)] == items[start:]
    assert source.total() == len(items)


@given(st.integers(-1000, 1000), st.integers(0, 100), st.integers(1, 12), st.data())
def test_range__any_bounds_and_sizes__come_back_as_they_were(
    low: int, count: int, size: int, data: st.DataObject
) -> None:
    source = RangeSource(low, low + count)
    start = size * data.draw(st.integers(0, count // size))
    pieces = check_pieces(source, size, start, count)

    assert [item for piece in pieces for item in items_of(source, piece)] == list(range(low + start, low + count))
    assert source.total() == count


def test_range__the_end_before_the_beginning__is_refused() -> None:
    with pytest.raises(DefinitionError, match="5 to 4"):
        RangeSource(5, 4)
    assert list(RangeSource(5, 5).pieces(3, 0)) == []


@pytest.mark.parametrize(
    "item",
    [float("nan"), float("inf"), {"a": [float("-inf")]}, object(), "half \udce9"],
    ids=["nan", "infinity", "nested", "object", "surrogate"],
)
def test_any_source__an_item_that_json_cannot_say__is_refused_and_never_changed(item: Any) -> None:
    """What comes back would not be what was given: not a number would become nothing."""
    with pytest.raises(InvalidPayloadError, match="item 1"):
        list(ListSource([0, item]).pieces(10, 0))
    with pytest.raises(InvalidPayloadError, match="item 1"):
        ListSource([0, item]).describe()


def test_any_source__an_item_that_is_too_large__is_refused_by_its_place() -> None:
    with pytest.raises(PayloadTooLargeError, match="item 3"):
        list(ListSource(["x", "x", "x", "x" * 300_000]).pieces(2, 0))
    (piece,) = ListSource(["x" * (256 * 1024 - 2)]).pieces(1, 0)
    assert piece.items == 1


def test_describe__other_items_or_bounds__are_distinguished() -> None:
    described = [
        ListSource([1, 2]).describe(), ListSource([2, 1]).describe(), ListSource([1, "2"]).describe(),
        ListSource([12]).describe(), ListSource([[1, 2]]).describe(), RangeSource(0, 2).describe(),
        RangeSource(1, 3).describe(),
    ]  # fmt: skip

    assert all(one != other for place, one in enumerate(described) for other in described[place + 1 :])
    assert ListSource([1, 2]).describe() == ListSource((1, 2)).describe()


def test_read_items__some_places_of_a_chunk__only_those() -> None:
    source = ListSource([10, 11, 12, 13, 14])
    pieces = list(source.pieces(3, 0))

    assert read_items(source.describe(), pieces[1], [4]) == [14]
    assert read_items(source.describe(), pieces[0], [0, 2]) == [10, 12]
    ranged = RangeSource(100, 110)
    assert read_items(ranged.describe(), list(ranged.pieces(5, 0))[1], [6, 9]) == [106, 109]


def test_read_items__a_row_that_does_not_say_where__is_refused_with_the_key() -> None:
    with pytest.raises(NotFoundError, match=r"chunks/r/chunk-0000500\.npz"):
        read_items({}, Piece(500, 500, "chunks/r/chunk-0000500.npz"), range(500, 1000))


# Lines.

LINES = [
    b"plain", b"", b"  spaced  ", b"caf\xc3\xa9", b"form\x0cfeed", b"tab\x0bvertical", b"line\xe2\x80\xa8separator",
    b"next\xc2\x85line", b"file\x1cgroup\x1drecord\x1e", b"carriage\rreturn", b"", b"quote\"'`", b"\xe2\x80\xa9",
    b"x" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_lines__with_every_odd_character__are_what_a_reader_of_lines_sees(
    tmp_path: Path, end: bytes, is_ended: bool, size: int
) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(end.join(LINES) + (end if is_ended else b""))
    source = LinesSource(path)

    pieces = check_pieces(source, size, 0, len(LINES))

    read = [item for piece in pieces for item in items_of(source, piece)]
    assert read == [line.decode() for line in LINES]
    for number, piece in enumerate(pieces):
        assert list(source.pieces(size, piece.start)) == pieces[number:]


def test_lines__empty_lines__count_but_for_what_follows_the_last_end(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    for content, lines in [(b"", []), (b"\n", [""]), (b"a\n\n", ["a", ""]), (b"\n\na", ["", "", "a"]), (b"a", ["a"])]:
        path.write_bytes(content)
        source = LinesSource(path)
        assert [item for piece in source.pieces(2, 0) for item in items_of(source, piece)] == lines


def test_lines__a_byte_that_is_no_text__is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"good\nb\xffd\n")
    source = LinesSource(path)
    pieces = list(source.pieces(1, 0))

    assert items_of(source, pieces[0]) == ["good"]
    with pytest.raises(InvalidPayloadError, match=r"lines\.txt"):
        items_of(source, pieces[1])


def test_lines__some_places_of_a_chunk__only_those(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    source = LinesSource(path)
    piece = list(source.pieces(4, 0))[1]

    assert read_items(source.describe(), piece, [5, 7]) == ["line 5", "line 7"]


# Bytes.


@given(st.integers(0, 100), st.integers(1, 40))
def test_bytes__any_size__comes_back_whole(tmp_path_factory: pytest.TempPathFactory, length: int, size: int) -> None:
    path = tmp_path_factory.mktemp("bytes") / "cube.bin"
    content = os.urandom(length)
    path.write_bytes(content)
    source = BytesSource(path)

    pieces = check_pieces(source, size, 0, length)

    assert b"".join(items_of(source, piece)[0] for piece in pieces) == content
    assert source.total() == length


# Files that change.


@pytest.mark.parametrize("kind", [LinesSource, BytesSource])
def test_file__changed_since_it_was_split__is_refused_rather_than_misread(
    tmp_path: Path, kind: type[LinesSource] | type[BytesSource]
) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\nc\n")
    source = kind(path)
    piece = next(iter(source.pieces(2, 0)))
    check_input(piece.input)

    path.write_bytes(b"x\ny\nz\n")
    os.utime(path, (1, 1))

    with pytest.raises(NotFoundError, match="changed"):
        items_of(source, piece)
    with pytest.raises(NotFoundError, match="changed"):
        check_input(piece.input)


@pytest.mark.parametrize("kind", [LinesSource, BytesSource])
def test_file__gone_since_it_was_split__is_refused_by_name(
    tmp_path: Path, kind: type[LinesSource] | type[BytesSource]
) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n")
    source = kind(path)
    piece = next(iter(source.pieces(2, 0)))
    path.unlink()

    with pytest.raises(NotFoundError, match="input"):
        check_input(piece.input)
    with pytest.raises(NotFoundError, match="input"):
        items_of(source, piece)


@pytest.mark.parametrize("kind", [LinesSource, BytesSource])
def test_file__that_cannot_be_read__is_refused_when_it_is_named(
    tmp_path: Path, kind: type[LinesSource] | type[BytesSource]
) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        kind(tmp_path / "nowhere")
    with pytest.raises(NotFoundError):
        kind(tmp_path)


@pytest.mark.timeout(20)
def test_file_mark__a_pipe_that_no_one_writes_to__is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(NotFoundError, match="pipe"):
        file_mark(tmp_path / "pipe")


def test_file__named_relative_to_a_folder__is_found_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "input").write_bytes(b"a\nb\n")
    monkeypatch.chdir(tmp_path)
    source = LinesSource(Path("input"))
    piece = next(iter(source.pieces(2, 0)))
    monkeypatch.chdir("/")

    assert items_of(source, piece) == ["a", "b"]


def test_check_input__of_items_in_the_row__is_always_there() -> None:
    check_input(None)
    check_input("[1,2]")
