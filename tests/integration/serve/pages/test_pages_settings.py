"""Settings page: what it shows to whom, keys that are issued, rotated and revoked from it, and no secret on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headgate.auth.roles import Role
from headgate.serve.pages.operations.settings import key_state
from tests.integration.serve.health_rig import START_SECONDS, done
from tests.integration.serve.pages.test_routes import ORIGIN, Document, Site, actions_of, text_of

PAGE = "/ui/settings"
NOW_MS = int(START_SECONDS * 1000)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("settings") / "home")
    try:
        yield made
    finally:
        made.is_stopping = True
        made.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that requires keys."""
    made = Site(tmp_path_factory.mktemp("guarded") / "home", is_required=True)
    try:
        yield made
    finally:
        made.is_stopping = True
        made.close()


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "state"),
    [
        (None, None, "ACTIVE"),
        ("2026-02-15T10:00:00.000Z", None, "ACTIVE"),
        ("2026-01-18T10:00:00.000Z", None, "EXPIRING"),
        ("2026-01-15T10:00:00.000Z", None, "EXPIRED"),
        ("2026-02-15T10:00:00.000Z", "2026-01-01T00:00:00.000Z", "REVOKED"),
    ],
)
def test_key_state__by_expiry_and_revocation__is_named(
    expires_at: str | None, revoked_at: str | None, state: str
) -> None:
    assert key_state({"expires_at": expires_at, "revoked_at": revoked_at}, NOW_MS) == state


def test_settings__of_the_server__are_shown_with_their_sources(site: Site) -> None:
    page = text_of(site.page(f"{PAGE}?show=all"))

    assert "1.2.3 on Python" in page
    assert str(site.settings.home) in page
    assert "Database that holds all state." in page
    assert "HEADGATE_STORE_BACKEND" in page
    found = text_of(site.page(f"{PAGE}?search=redis"))
    assert "cache.redis_url" in found
    assert "store.backend" not in found
    assert "No setting matches." in text_of(site.page(f"{PAGE}?search=nothing-such"))


def test_key__issued_from_the_page__is_revealed_by_the_dialog_only(site: Site) -> None:
    issue = actions_of(site.page(PAGE))["Issue a key"]
    assert (issue["reveals"], issue["path"]) == ("text", "/api/v1/api-keys")

    body = {"principal": "ada", "roles": ["operator"], "scopes": ["urn:dp:orders:*"], "expires_in": "90d"}
    answer = site.post(f"{ORIGIN}{issue['path']}", body)
    text = done(answer, 201)["text"]

    assert answer.headers["cache-control"] == "no-store"
    page = site.page(PAGE)
    assert text not in page
    assert text.rpartition("_")[2] not in page
    assert "ada" in text_of(page)
    assert "urn:dp:orders:*" in text_of(page)


def test_key__rotated_and_revoked_from_the_page__is_listed_as_revoked(site: Site) -> None:
    old = site.key("bob", Role.VIEWER)
    key_id = old.split("_")[1]

    def action(name: str) -> Any:
        # Those of all keys have the same labels.
        buttons = [each for tag, each in Document.read(site.page(PAGE)).tags if tag == "button"]
        sent = [msgspec.json.decode(str(each["data-action"])) for each in buttons if "data-action" in each]
        (found,) = [each for each in sent if each["title"] == name and key_id in each["path"]]
        return found

    rotate = action("Rotate")
    new = done(site.post(f"{ORIGIN}{rotate['path']}", {"overlap": "0s", "reason": "leaked"}), 201)["text"]
    assert site.get("/datasets", key=old).status_code == 401
    assert site.get("/datasets", key=new).status_code == 200
    done(site.ask("DELETE", f"{ORIGIN}{action('Revoke')['path']}"), 200)

    assert site.get("/datasets", key=new).status_code == 401
    assert key_id not in text_of(site.page(PAGE))
    page = text_of(site.page(f"{PAGE}?keys=all"))
    assert key_id in page
    assert "REVOKED" in page


def test_session__ended_from_the_page__is_no_longer_listed(site: Site) -> None:
    assert "No sessions" in text_of(site.page(PAGE))
    site.sessions.open_by_key(site.key("eve", Role.OPERATOR))

    page = site.page(PAGE)

    end = actions_of(page)["End"]
    assert "eve" in text_of(page)
    done(site.ask("DELETE", f"{ORIGIN}{end['path']}"), 200)
    assert "No sessions" in text_of(site.page(PAGE))


def test_settings__reader_without_the_role__sees_own_roles_and_no_settings(guarded: Site) -> None:
    page = guarded.page(PAGE, key=guarded.key("vera", Role.VIEWER))

    found = text_of(page)
    assert "vera" in found
    assert "viewer" in found
    assert "may not settings.read" in found
    assert "may not key.manage" in found
    assert str(guarded.settings.home) not in found
    assert "store.backend" not in found
    assert "disabled" in page


def test_settings__admin_with_a_key__sees_keys_without_their_text(guarded: Site) -> None:
    key = guarded.key("root", Role.ADMIN)

    page = guarded.page(PAGE, key=key)

    assert "root" in text_of(page)
    assert key.rpartition("_")[2] not in page
