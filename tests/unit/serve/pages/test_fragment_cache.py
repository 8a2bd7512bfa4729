"""The fragment cache: equal pages share a rendering, which is never older than what was asked for, nor another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.errors import ServerBusyError
from headgate.serve.pages.fragment_cache import AGE_SECONDS_MAX, BYTES_MAX, FragmentCache, Rendered


class Renderer:
    """Renders its number, once it is let."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> Rendered:
        self.count += 1
        number = self.count
        await self.may_end.wait()
        return Rendered(b"%d" % number, 200, {}, f"digest-{number}")


class Site:
    """A cache with a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cache = FragmentCache(lambda: self.now)
        self.render = Renderer()

    async def get(self, key: str = "ann /ui", *, as_of: int = 1, sequence: int = 1) -> bytes:
        return (await self.cache.get(key, as_of, sequence, self.render)).content


def run(talk: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def session() -> None:
        await talk(Site())

    asyncio.run(session())


def test_get__200_equal_pages_at_once__one_rendering() -> None:
    async def talk(site: Site) -> None:
        site.render.may_end.clear()
        waiting = [asyncio.create_task(site.get()) for _ in range(200)]
        await asyncio.sleep(0)
        site.render.may_end.set()
        assert set(await asyncio.gather(*waiting)) == {b"1"}
        assert await site.get() == b"1"
        assert (site.render.count, site.cache.render_count, site.cache.shared_count) == (1, 1, 200)

    run(talk)


def test_get__another_caller_or_address__is_rendered_for_it() -> None:
    async def talk(site: Site) -> None:
        assert [await site.get(key) for key in ("ann /ui", "bob /ui", "ann /ui/runs", "ann /ui")] == [
            b"1",
            b"2",
            b"3",
            b"1",
        ]

    run(talk)


def test_get__a_change_after_the_rendering_began__is_rendered_again() -> None:
    async def talk(site: Site) -> None:
        assert await site.get(as_of=1, sequence=1) == b"1"
        assert await site.get(as_of=2, sequence=2) == b"2"
        # A page that is behind may have the newer content.
        assert await site.get(as_of=1, sequence=2) == b"2"

    run(talk)


def test_get__a_change_while_it_is_rendered__waits_for_a_rendering_that_includes_it() -> None:
    async def talk(site: Site) -> None:
        site.render.may_end.clear()
        before = asyncio.create_task(site.get(as_of=1, sequence=1))
        await asyncio.sleep(0)
        after = asyncio.create_task(site.get(as_of=2, sequence=2))
        await asyncio.sleep(0)
        site.render.may_end.set()
        assert (await before, await after) == (b"1", b"2")
        # The rendering that ended first does not replace the one that includes more.
        assert await site.get(as_of=2, sequence=2) == b"2"

    run(talk)


def test_get__older_than_a_second__is_rendered_again_although_nothing_was_reported() -> None:
    async def talk(site: Site) -> None:
        assert await site.get() == b"1"
        site.now += AGE_SECONDS_MAX - 0.01
        assert await site.get() == b"1"
        site.now += 0.02
        assert await site.get() == b"2"

    run(talk)


def test_get__first_caller_disconnects__the_others_get_its_rendering() -> None:
    async def talk(site: Site) -> None:
        site.render.may_end.clear()
        first, other = (asyncio.create_task(site.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        site.render.may_end.set()
        assert await other == b"1"
        assert site.render.count == 1

    run(talk)


def test_get__rendering_fails__all_waiters_are_refused_and_the_next_request_renders() -> None:
    async def talk(site: Site) -> None:
        async def fail() -> Rendered:
            raise ServerBusyError("busy")

        for _ in range(2):
            with pytest.raises(ServerBusyError):
                await site.cache.get("ann /ui", 1, 1, fail)
        assert site.cache.render_count == 2
        assert await site.get() == b"1"

    run(talk)


def test_get__an_error_page__is_not_used_again() -> None:
    async def talk(site: Site) -> None:
        async def not_found() -> Rendered:
            return Rendered(b"none", 404, {})

        assert (await site.cache.get("ann /ui", 1, 1, not_found)).content == b"none"
        assert await site.get() == b"1"

    run(talk)


def test_get__more_than_fits__oldest_are_dropped() -> None:
    async def talk(site: Site) -> None:
        async def large() -> Rendered:
            return Rendered(bytes(BYTES_MAX // 3), 200, {}, "digest")

        assert await site.get("small") == b"1"
        for number in range(4):
            site.now += 0.001
            await site.cache.get(f"large {number}", 1, 1, large)
        assert await site.get("small") == b"2"
        count = site.cache.render_count
        await site.cache.get("large 3", 1, 1, large)
        assert site.cache.render_count == count

    run(talk)
