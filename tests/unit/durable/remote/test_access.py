"""Access of a remote client: arguments before the environment, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.durable.remote.access import DEFAULT_URL, Access
from headgate.errors import SettingsError


def test_of__arguments__win_over_the_environment() -> None:
    environ = {"HEADGATE_SERVER": "https://there:1", "HEADGATE_API_KEY": "hg_env", "HEADGATE_CA": "/ca.pem"}

    found = Access.of(None, None, None, environ)
    given = Access.of("http://localhost:8400/", "hg_given", "/mine.pem", environ)

    assert (found.url, found.ca, found.is_local) == ("https://there:1", Path("/ca.pem"), False)
    assert found.headers()["authorization"] == "Bearer hg_env"
    assert (given.url, given.ca, given.is_local) == ("http://localhost:8400", Path("/mine.pem"), True)
    assert given.headers()["authorization"] == "Bearer hg_given"
    assert Access.of(None, None, None, {}) == Access(DEFAULT_URL, is_local=True)
    assert "hg_env" not in repr(found)


@pytest.mark.parametrize("url", ["127.0.0.1:8400", "ftp://there", "http://", "http://a:b@there", "https://there:x"])
def test_of__no_address_of_a_server__is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="invalid address"):
        Access.of(url, None, None, {})


def test_of__address_with_a_password__is_refused_without_showing_it() -> None:
    with pytest.raises(SettingsError, match="invalid address") as refused:
        Access.of("https://user:hunter2@there:8400", None, None, {})
    assert "hunter2" not in str(refused.value)


def test_of__key_in_clear_to_another_machine__is_refused() -> None:
    with pytest.raises(SettingsError, match="unencrypted"):
        Access.of("http://there:8400", "hg_key", None, {})
    with pytest.raises(SettingsError, match="characters"):
        Access.of("https://there:8400", "hg key\n", None, {})
