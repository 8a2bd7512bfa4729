"""Finding a server from its home, and reading what commands are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli import api_client as api
from headgate.cli.session import Session
from headgate.errors import SettingsError


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("http://127.0.0.1:8400", "http://127.0.0.1:8400"),
        ("http://0.0.0.0:8400", "http://127.0.0.1:8400"),
        ("http://[::]:8400", "http://[::1]:8400"),
        ("http://control.example:8400", "http://control.example:8400"),
    ],
)
def test_served__address_in_the_home__is_one_that_can_be_asked(tmp_path: Path, written: str, asked: str) -> None:
    (tmp_path / "server.json").write_text(f'{{"http": "{written}"}}')

    assert api._served_url(tmp_path) == asked


def test_served__no_file__is_none(tmp_path: Path) -> None:
    assert api._served_url(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "{}", '{"http": 1}', '{"http": "http://[x"}'])
def test_served__damaged_file__says_which(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)

    with pytest.raises(SettingsError, match=r"server\.json: no valid server address"):
        api._served_url(tmp_path)


@pytest.mark.parametrize(
    ("written", "variable", "key"),
    [("hg_file\n", "hg_env", "hg_file"), (None, "hg_env", "hg_env"), (None, None, None)],
)
def test_key__file_and_variable__the_file_goes_first(
    tmp_path: Path, written: str | None, variable: str | None, key: str | None
) -> None:
    file = tmp_path / "key"
    if written is not None:
        file.write_text(written)

    assert api._key(variable, file if written is not None else None) == key


@pytest.mark.parametrize("written", ["", "\n", "hg_a hg_b", "hg_a\nx: y", "hg_\u00fc"])
def test_key__file_without_a_key__is_refused_and_not_shown(tmp_path: Path, written: str) -> None:
    file = tmp_path / "key"
    file.write_text(written)

    with pytest.raises(SettingsError, match="--api-key-file") as refused:
        api._key(None, file)
    assert "hg_" not in refused.value.message


def test_key__no_such_file__says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        api._key(None, tmp_path / "none")


@pytest.mark.parametrize("url", ["http://control.example:8400", "http://10.0.0.1:8400"])
def test_api__key_for_a_server_elsewhere_without_tls__is_not_sent(url: str) -> None:
    with pytest.raises(SettingsError, match="https://") as refused:
        api.Api(url, key="hg_secret").get("/datasets")
    assert "hg_secret" not in refused.value.message


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_api__ca_that_holds_no_certificate__says_which_file(tmp_path: Path, content: str | None) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)

    with pytest.raises(SettingsError, match=r"--ca .*ca\.pem"):
        api.Api("https://127.0.0.1:1", ca=ca).get("/datasets")


def test_settings__how_to_call_a_server__is_no_setting(tmp_path: Path) -> None:
    calling = {"HEADGATE_SERVER": "http://x", "HEADGATE_API_KEY": "hg_x", "HEADGATE_CA": "ca.pem"}

    settings = Session({**calling, "HEADGATE_HOME": str(tmp_path)}).settings(None)

    assert settings.home == tmp_path


def test_at__ids_with_slashes__are_one_segment() -> None:
    assert api.at("executions", "a/b c", "history") == "/executions/a%2Fb%20c/history"
