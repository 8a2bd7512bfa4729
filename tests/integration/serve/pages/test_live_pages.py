"""Open pages: many cost one poll and one rendering a change; each shows the change, and the page of its caller only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.serve.pages import board, change_feed
from headgate.serve.runtime.log_tail import LogTail
from tests.integration.serve.graphql_board import Stream
from tests.integration.serve.health_rig import ORDERS, PAYMENTS
from tests.integration.serve.pages.test_routes import ORIGIN, Site, _break, opened
from tests.integration.serve.pages.test_routes import site as site

PAGES = 20


class OpenPages:
    """Open pages of one site, as a browser has them: a stream each, and a request for the content on each message."""

    def __init__(self, site: Site, client: httpx.AsyncClient) -> None:
        self._site = site
        self._client = client
        self._streams: list[tuple[Stream, asyncio.Task[None]]] = []

    async def open(self, key: str | None = None) -> Stream:
        stream = Stream(b"")
        headers = {"host": "127.0.0.1:8400", "accept": "text/event-stream"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        stream.scope |= {
            "method": "GET",
            "path": "/ui/changes",
            "raw_path": b"/ui/changes",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        app = cast("Callable[..., Coroutine[Any, Any, None]]", self._site.app)
        task = asyncio.create_task(app(stream.scope, stream.receive, stream.send))
        self._streams.append((stream, task))
        return stream

    async def fetch(
        self, as_of: str = "", key: str | None = None, digest: str = "", path: str = "/ui"
    ) -> httpx.Response:
        headers = {"headgate-fragment": "main", "headgate-as-of": as_of, "if-none-match": digest}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return await self._client.get(ORIGIN + path, headers={name: value for name, value in headers.items() if value})

    async def close(self) -> None:
        for stream, _ in self._streams:
            stream.left.set()
        await asyncio.wait_for(asyncio.gather(*(task for _, task in self._streams)), 10)


def talk_to(site: Site, talk: Callable[[OpenPages], Coroutine[Any, Any, None]]) -> None:
    async def session(client: httpx.AsyncClient) -> None:
        pages = OpenPages(site, client)
        try:
            await talk(pages)
        finally:
            await pages.close()

    site.session(session)


async def as_of(stream: Stream, kind: str) -> str:
    """Return the position that the next message gives."""
    found = await stream.event()
    assert found is not None
    assert found[0] == kind
    position: str = found[1]["as_of"]
    return position


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were rendered, by caller."""
    found: list[str] = []
    whole = board.board

    def counted(api: Any, *given: Any) -> Any:
        found.append(api._principal.name)
        return whole(api, *given)

    monkeypatch.setattr(board, "board", counted)
    return found


def test_open_pages__one_change__one_poll_and_one_rendering_for_all(
    site: Site, drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.dataset()
    polls: list[int] = []
    poll = LogTail.poll

    def counted(tail: LogTail) -> Any:
        found = poll(tail)
        polls.append(len(found))
        return found

    monkeypatch.setattr(LogTail, "poll", counted)
    site.clock.advance(60)

    async def talk(pages: OpenPages) -> None:
        streams = [await pages.open() for _ in range(PAGES)]
        for stream in streams:
            await as_of(stream, "ready")
        await asyncio.to_thread(_break, site, ORDERS)
        positions = {await as_of(stream, "changed") for stream in streams}
        assert len(positions) == 1
        answers = await asyncio.gather(*(pages.fetch(positions.copy().pop()) for _ in streams))
        assert len({each.text for each in answers}) == 1
        assert ORDERS in answers[0].text

    talk_to(site, talk)
    assert drawn == ["local"]
    # One poll found the change, whatever the number of pages; the others found nothing.
    assert len([each for each in polls if each]) == 1


def test_fragment__of_two_callers__each_gets_what_it_may_see(site: Site, drawn: list[str]) -> None:
    site.dataset(ORDERS)
    site.dataset(PAYMENTS)
    all_key = site.key("ann", Role.VIEWER)
    one_key = site.key("bob", Role.VIEWER, scopes=("urn:dp:orders:*",))
    site.clock.advance(60)

    async def talk(pages: OpenPages) -> None:
        stream = await pages.open(all_key)
        await as_of(stream, "ready")
        await asyncio.to_thread(_break, site, PAYMENTS)
        position = await as_of(stream, "changed")
        for _ in range(2):
            assert PAYMENTS in (await pages.fetch(position, all_key)).text
            assert PAYMENTS not in (await pages.fetch(position, one_key)).text

    talk_to(site, talk)
    assert drawn == ["ann", "bob"]


def test_fragment__caller_loses_its_key__gets_nothing_that_was_rendered_before(tmp_path: Path) -> None:
    with opened(tmp_path / "home", is_required=True) as site:
        issued = site.keys.issue("ann", [Role.ADMIN], ["*"], issuer=LOCAL)
        key = issued.key.reveal()

        async def talk(pages: OpenPages) -> None:
            position = await as_of(await pages.open(key), "ready")
            assert (await pages.fetch(position, key)).status_code == 200
            await asyncio.to_thread(site.keys.revoke, issued.about.key_id, issuer=LOCAL)
            assert (await pages.fetch(position, key)).status_code == 401
            assert (await pages.fetch(position)).status_code == 401

        talk_to(site, talk)


def test_fragment__of_a_later_change_or_without_a_position__is_rendered_again(site: Site, drawn: list[str]) -> None:
    site.dataset(ORDERS)
    site.dataset(PAYMENTS)
    site.clock.advance(60)

    async def talk(pages: OpenPages) -> None:
        stream = await pages.open()
        await as_of(stream, "ready")
        await asyncio.to_thread(_break, site, ORDERS)
        first = await as_of(stream, "changed")
        assert _incidents((await pages.fetch(first)).text) == 1
        await asyncio.to_thread(_break, site, PAYMENTS)
        # As after an action of the page's own user: what was just changed is shown at once.
        assert _incidents((await pages.fetch()).text) == 2
        second = await as_of(stream, "changed")
        assert _incidents((await pages.fetch(second)).text) == 2
        assert len(drawn) == 3
        # A number that this server did not give, such as one of before its restart.
        for foreign in ("0.1", "x", f"{second}9", f"{first.partition('.')[0]}.9999"):
            assert _incidents((await pages.fetch(foreign)).text) == 2
        assert len(drawn) == 7

    talk_to(site, talk)


def test_fragment__says_the_same_as_before__is_not_sent_again(site: Site) -> None:
    site.dataset(ORDERS)
    site.signal("OK")

    async def talk(pages: OpenPages) -> None:
        first = await pages.fetch()
        site.clock.advance(1)
        again = await pages.fetch(digest=first.headers["etag"])
        assert (again.status_code, again.text) == (304, "")
        assert again.headers["etag"] == first.headers["etag"]
        await asyncio.to_thread(_break, site, ORDERS)
        # The counts of the rail are read at intervals.
        site.clock.advance(1)
        changed = await pages.fetch(digest=first.headers["etag"])
        assert changed.status_code == 200
        assert changed.headers["etag"] != first.headers["etag"]
        # Only the ages differ, and the page itself keeps them current.
        site.clock.advance(30)
        later = await pages.fetch()
        assert later.text != changed.text
        assert _without_times(later.text) == _without_times(changed.text)
        assert later.headers["etag"] == changed.headers["etag"]

    talk_to(site, talk)


def _incidents(html: str) -> int:
    return len(set(re.findall(r"INC-[0-9A-Z-]+", html)))


def _without_times(html: str) -> str:
    return re.sub(r"(?s)<time.*?</time>", "", html)


def test_fragment__of_another_address__is_another(site: Site) -> None:
    site.dataset(ORDERS)
    site.dataset(PAYMENTS)

    async def talk(pages: OpenPages) -> None:
        position = await as_of(await pages.open(), "ready")
        for _ in range(2):
            for urn in (ORDERS, PAYMENTS):
                page = await pages.fetch(position, path=f"/ui/datasets/{quote(urn, safe='')}")
                assert f'<span class="urn">{urn}' in page.text or urn in page.text.partition("</h1>")[0]
            found = await pages.fetch(position, path=f"/ui/datasets?search={ORDERS}")
            assert PAYMENTS not in found.text
            found = await pages.fetch(position, path=f"/ui/datasets?search={PAYMENTS}")
            assert PAYMENTS in found.text

    talk_to(site, talk)


def test_changes__during_the_pace_of_the_feed__are_in_the_next_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough that the second change certainly falls into it.
    monkeypatch.setattr(change_feed, "PACE_SECONDS", 0.3)
    site.dataset(ORDERS)
    site.dataset(PAYMENTS)
    site.clock.advance(60)

    async def talk(pages: OpenPages) -> None:
        stream = await pages.open()
        await as_of(stream, "ready")
        await asyncio.to_thread(_break, site, ORDERS)
        first = await as_of(stream, "changed")
        # No commit follows that would report it.
        await asyncio.to_thread(_break, site, PAYMENTS)
        second = await as_of(stream, "changed")
        assert int(second.partition(".")[2]) == int(first.partition(".")[2]) + 1

    talk_to(site, talk)
