"""Every page in Chromium: it opens without an error, is accessible in light (and dark), and fits a phone.

`pages.py` says how to add a page.
"""

from __future__ import annotations

import os
from typing import Any, Final, cast

import pytest

from headgate.serve.pages import routes
from headgate.serve.pages.operations import server
from tests.acceptance.browser.conftest import Screenshots
from tests.acceptance.browser.pages import PAGES, STATES, file_name
from tests.acceptance.browser.person import PHONE_WIDTH, Person
from tests.acceptance.browser.world import World

# Contrast in the dark takes half of the time of a page. Without a soak, the pages of single things stand for the lists.
# Read here, because tests themselves see no setting of the machine.
IS_THOROUGH: Final = "HEADGATE_TEST_PAGES" in os.environ


def test_pages__every_route__is_looked_at() -> None:
    # Its page is built with the monitor of the server.
    of_server = server.pages(cast("Any", None))

    assert sorted(PAGES) == sorted(each.path for each in (*routes.PAGES, *of_server))


@pytest.mark.parametrize("path", [*PAGES, *STATES])
def test_page__in_a_browser__is_free_of_errors_accessible_and_fits_a_phone(
    world: World, person: Person, screenshots: Screenshots, path: str
) -> None:
    name = file_name(path)
    person.open("/ui" + (PAGES | STATES)[path](world))

    try:
        screenshots.take(person.page, name, full_page=True)
        barriers = person.barriers()
        person.dark()
        if IS_THOROUGH or "{" in path:
            barriers += [f"dark: {each}" for each in person.barriers(only=("color-contrast",))]
        screenshots.take(person.page, f"{name}-dark")
        person.dark(is_on=False)
        person.resize(PHONE_WIDTH)
        overflow = person.overflow()
        screenshots.take(person.page, f"{name}-phone")
    finally:
        person.dark(is_on=False)
        person.resize()
    found = [*barriers, *(f"wider than a phone: {each}" for each in overflow), *person.problems_of_page()]
    assert not found, "\n".join(found)
