"""Counts in the rail of every page: read from the store with few calls, updated with the fragments, hidden by role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from headgate.auth.roles import Role
from headgate.serve.pages.routes import FRAGMENT
from tests.integration.serve.health_rig import ORDERS, PAYMENTS, done
from tests.integration.serve.pages.test_routes import ORIGIN, Document, Site, opened


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with opened(tmp_path / "home") as made:
        yield made


def counts(page: str) -> list[str]:
    """Return the counts of the rail in words."""
    return [str(each["title"]) for tag, each in Document.read(page).tags if each.get("class") == "count"]


def sent_counts(site: Site, path: str) -> Any:
    """Return the counts of a fragment."""
    answer = site.get(ORIGIN + path, headers={FRAGMENT: "main"})
    (found,) = [each["data-counts"] for tag, each in Document.read(answer.text).tags if tag == "template"]
    return msgspec.json.decode(str(found))


def test_rail__nothing_wrong__has_no_count(site: Site) -> None:
    assert counts(site.page("/ui")) == []
    assert sent_counts(site, "/ui") == {}


def test_rail__open_incident__is_counted_on_every_page_until_acknowledged(site: Site) -> None:
    incident = site.trouble(ORDERS)
    site.clock.advance(2)

    for path in ("/ui", "/ui/datasets", "/ui/incidents", f"/ui/datasets/{quote(ORDERS, safe='')}", "/ui/nothing"):
        page = site.page(path, status=404 if path == "/ui/nothing" else 200)
        assert counts(page) == ["1 incident is not acknowledged"]
    assert sent_counts(site, "/ui/datasets")["incidents"]["text"] == "1"

    done(site.patch(f"/incidents/{incident}", {"status": "ACKNOWLEDGED"}), 200)
    site.clock.advance(2)
    assert sent_counts(site, "/ui/datasets") == {}


def test_rail__by_role_and_scope__counts_what_the_reader_may_list(tmp_path: Path) -> None:
    with opened(tmp_path / "home", is_required=True) as site:
        root = site.key("root", Role.ADMIN)
        for urn in (ORDERS, PAYMENTS):
            done(site.post("/datasets", {"dataset_urn": urn, "owner_team": "team-a"}, key=root), 201)
            address = f"/datasets/{quote(urn, safe='')}/signals/FRESHNESS"
            done(site.put(address, site.value("CRITICAL"), key=root), 200)
        site.clock.advance(2)

        assert counts(site.page("/ui/datasets", key=root)) == ["2 incidents are not acknowledged"]
        some = site.key("vera", Role.VIEWER, scopes=["urn:dp:orders:*"])
        assert counts(site.page("/ui/datasets", key=some)) == ["1 incident is not acknowledged"]
        none = site.key("gate", Role.ENFORCER)
        assert counts(site.page("/ui/datasets", key=none)) == []
