"""Session API: who is signed in, without secrets, and the end of a session by an administrator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.auth.roles import Role
from headgate.auth.sessions import OpenedSession
from headgate.errors import UnauthenticatedError
from tests.integration.serve.health_rig import HealthApi, done, health_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def signed_in(api: HealthApi, name: str = "ada") -> OpenedSession:
    return api.sessions.open_by_key(api.key(name, Role.OPERATOR))


def test_sessions__of_people__are_listed_latest_first_without_secrets(api: HealthApi) -> None:
    first = signed_in(api)
    api.clock.advance(1)
    signed_in(api, "bob")

    answer = api.get("/sessions")

    items = done(answer, 200)["items"]
    assert [each["principal"] for each in items] == ["bob", "ada"]
    assert items[1]["key_id"] == first.session.principal.key_id
    row = first.session.row
    for secret in (first.cookie.reveal(), row.session_id, row.csrf_token, row.key_digest or ""):
        assert secret not in answer.text


def test_sessions__rotated_and_expired__are_listed_once_and_not_at_all(api: HealthApi) -> None:
    opened = signed_in(api)
    assert api.sessions.rotate(opened.session) is not None
    assert len(done(api.get("/sessions"), 200)["items"]) == 1

    api.clock.advance(api.settings.auth.session_seconds + 1)
    assert done(api.get("/sessions"), 200)["items"] == []


def test_session__ended__is_refused_with_all_its_cookies_and_audited(api: HealthApi) -> None:
    opened = signed_in(api)
    cookie = api.sessions.rotate(opened.session)
    assert cookie is not None
    (listed,) = done(api.get("/sessions"), 200)["items"]

    done(api.delete(f"/sessions/{listed['sign_in_id']}"), 200)

    for each in (opened.cookie, cookie):
        with pytest.raises(UnauthenticatedError):
            api.sessions.session(each.reveal())
    assert done(api.get("/sessions"), 200)["items"] == []
    entity = f"session {listed['sign_in_id']}"
    actions = [each["action"] for each in done(api.get("/audit", params={"entity": entity}), 200)["items"]]
    assert actions == ["session.end", "session.sign_in"]
    assert api.delete(f"/sessions/{listed['sign_in_id']}").status_code == 404


def test_sessions__pages__hold_all_of_them(api: HealthApi) -> None:
    for number in range(3):
        signed_in(api, f"person-{number}")

    first = done(api.get("/sessions", params={"page_size": 2}), 200)
    rest = done(api.get("/sessions", params={"page_token": first["next_page_token"]}), 200)

    assert sorted(each["principal"] for each in [*first["items"], *rest["items"]]) == [
        "person-0", "person-1", "person-2",
    ]  # fmt: skip
