"""Secret headers come from files, are read anew each time, and are sent to their receiver alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.durable.bus.forward_headers import BYTES_MAX, HeaderFiles
from headgate.errors import SettingsError, TransientError
from headgate.settings import Secret


def headers_of(path: Path, content: str | bytes) -> HeaderFiles:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return HeaderFiles({"shop.example": str(path)})


def test_headers__of_a_receiver__are_those_of_its_file(tmp_path: Path) -> None:
    content = "# For the shop.\nAuthorization: Bearer a:b==\n\nX-Tenant:  7 of 9 \r\n"
    files = headers_of(tmp_path / "shop", content)

    assert files.headers("shop.example:443") == {"authorization": Secret("Bearer a:b=="), "x-tenant": Secret("7 of 9")}
    assert files.headers("other.example:443") == {}
    assert files.headers("evil.shop.example:443") == {}


@pytest.mark.parametrize(
    ("named", "receiver"),
    [
        ("Shop.Example", "shop.example:443"),
        ("shop.example.", "shop.example:8443"),
        ("shop.example:8443", "shop.example:8443"),
        ("10.0.0.7", "10.0.0.7:80"),
        ("[fd00::7]", "[fd00::7]:443"),
        ("[fd00::7]:8443", "[fd00::7]:8443"),
    ],
)
def test_headers__however_the_receiver_is_written__are_found(tmp_path: Path, named: str, receiver: str) -> None:
    (tmp_path / "shop").write_text("x-key: 1")

    assert HeaderFiles({named: str(tmp_path / "shop")}).headers(receiver) == {"x-key": Secret("1")}


def test_headers__of_a_port__are_not_those_of_another(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("x-key: port")
    (tmp_path / "host").write_text("x-key: host")
    files = HeaderFiles({"shop.example:8443": str(tmp_path / "port"), "shop.example": str(tmp_path / "host")})

    assert files.headers("shop.example:8443") == {"x-key": Secret("port")}
    assert files.headers("shop.example:443") == {"x-key": Secret("host")}


def test_headers__file_was_replaced__are_the_new_ones(tmp_path: Path) -> None:
    files = headers_of(tmp_path / "shop", "x-key: old")
    assert files.headers("shop.example:443") == {"x-key": Secret("old")}

    headers_of(tmp_path / "shop", "x-key: new")

    assert files.headers("shop.example:443") == {"x-key": Secret("new")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("s3cret", "line 1: not a header"),
        ("x-key: 1\ns3 cret: 1", "line 2: not a header"),
        (": s3cret", "line 1: not a header"),
        ("x-key:", "line 1: x-key has no value"),
        ("x-key: s3cret\x07", "line 1: x-key has a character"),
        ("x-key: s3cret é", "line 1: x-key has a character"),
        ("Host: s3cret", "line 1: host is not for this file"),
        ("content-length: 3", "line 1: content-length is not for this file"),
        ("ce-type: s3cret", "line 1: ce-type is not for this file"),
        ("webhook-signature: s3cret", "line 1: webhook-signature is not for this file"),
        ("x-key: s3cret\nX-Key: s3cret", "line 2: x-key is given twice"),
        (b"x-key: s3cret\xff", "line 1: x-key has a character"),
        ("x-key: " + "s3cret" * BYTES_MAX, "larger than"),
        ("# nothing\n", "no header"),
    ],
)
def test_headers__a_file_that_is_not_one__says_where_and_repeats_nothing(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    files = headers_of(tmp_path / "shop", content)

    with pytest.raises(SettingsError) as refused:
        files.check()
    with pytest.raises(TransientError) as failed:
        files.headers("shop.example:443")

    for error in (refused.value, failed.value):
        assert message in str(error)
        assert "forward.headers" in str(error)
        assert str(tmp_path / "shop") in str(error)
        assert "s3cret" not in f"{error} {error.__cause__!r} {error.__context__!r}"


def test_headers__no_file__is_refused_at_the_start_and_tried_again_later(tmp_path: Path) -> None:
    files = HeaderFiles({"shop.example": str(tmp_path / "none")})

    with pytest.raises(SettingsError, match="No such file"):
        files.check()
    with pytest.raises(TransientError, match="No such file"):
        files.headers("shop.example:443")


@pytest.mark.parametrize("named", ["", "https://shop.example", "shop.example/in", "*.example", "shop.example:x"])
def test_files__for_what_is_not_a_receiver__are_refused(tmp_path: Path, named: str) -> None:
    with pytest.raises(SettingsError, match=r"forward\.headers"):
        HeaderFiles({named: str(tmp_path / "shop")})


def test_files__shown__report_no_header(tmp_path: Path) -> None:
    files = headers_of(tmp_path / "shop", "x-key: s3cret")

    assert "s3cret" not in f"{files!r} {files.headers('shop.example:443')!r} {files.headers('shop.example:443')}"
