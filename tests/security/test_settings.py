"""Settings and keys: no secret of the server is shown, and the text of a key is in neither log, page nor database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from tests.security.server import Target

REDIS: Final = "cache-password-of-the-server"
COLLECTOR: Final = "collector-password-of-the-server"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("settings")
    made = Target(
        folder,
        cwd=folder,
        roles=("viewer", "operator", "service"),
        HEADGATE_CACHE_REDIS_URL=f"redis://:{REDIS}@127.0.0.1:1/0",
        HEADGATE_TELEMETRY_OTLP_ENDPOINT=f"http://ada:{COLLECTOR}@127.0.0.1:1",
    )
    yield made
    made.stop()


def page(target: Target, role: str, path: str) -> httpx.Response:
    return httpx.get(target.url + path, headers={"authorization": f"Bearer {target.keys[role]}"}, timeout=20)


def test_settings__as_administrator__have_no_secret(target: Target) -> None:
    answer = target.call("admin", "GET", "/settings")

    assert answer.status == 200
    shown = {each["name"]: each["value"] for each in answer.body["settings"]}
    assert shown["cache.redis_url"] == "(hidden)"
    for text in (answer.text, page(target, "admin", "/ui/settings?show=all").text):
        assert REDIS not in text
        assert COLLECTOR not in text


@pytest.mark.parametrize("role", ["viewer", "operator", "service"])
def test_settings__as_another_role__are_refused(target: Target, role: str) -> None:
    assert target.call(role, "GET", "/settings").status == 403
    assert target.call(role, "GET", "/sessions").status == 403
    assert target.call(role, "DELETE", "/sessions/01aaaaaaaaaaaaaaaaaaaaaaaa").status == 403
    shown = page(target, role, "/ui/settings?show=all").text
    assert "cache.redis_url" not in shown
    assert str(target.home) not in shown


def test_key__issued_from_the_page__its_text_is_stored_nowhere(target: Target) -> None:
    issued = target.call("admin", "POST", "/api-keys", {"principal": "eve", "roles": ["viewer"]})
    secret = issued.body["text"].rpartition("_")[2]

    assert issued.status == 201
    assert "eve" in page(target, "admin", "/ui/settings").text
    assert secret not in page(target, "admin", "/ui/settings?keys=all").text
    assert secret not in (target.folder / "stderr").read_text()
    for file in target.home.glob("headgate.db*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes()
