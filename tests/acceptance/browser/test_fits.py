"""A survey of fits whose handlers do everything wrong, in a short form: the pages explain each failure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.browser.conftest import Screenshots
from tests.acceptance.browser.person import Person
from tests.soak import fits

# One chunk of each kind fails.
ITEMS = fits.EVERY * fits.CHUNK_SIZE


@pytest.mark.long
def test_fits__handlers_raise_hang_leak_and_crash_under_kills__page_explains_and_redrives(
    tmp_path: Path, chromium: Browser, screenshots: Screenshots
) -> None:
    with fits.Survey(tmp_path / "survey", ITEMS, timeout_seconds=8.0) as survey:
        partial = fits.run_story(survey, kills=2, freeze_seconds=2.0)

        failures = survey.failures()
        assert fits.wrong_failures(survey, failures) == []
        assert (partial["counts"]["done"], partial["counts"]["dead"]) == (fits.EVERY - 4, 4)
        person = Person(chromium, survey.server.url, None)
        page = person.open(f"/ui/fanouts/{survey.run_id}")
        for error_class in fits.ERROR_CLASSES.values():
            expect(page.locator("main")).to_contain_text(error_class)
        for kind in ("Traceback", "Output"):
            page.locator("summary", has_text=f"{kind} of chunk-").first.click()
        assert page.locator("td pre", has_text=re.compile("faults.py.*in act", re.DOTALL)).count() == len(failures)
        lanes = page.request.get(f"{survey.server.url}/api/v1/fanouts/{survey.run_id}/plots/workers").text()
        assert re.search(r"\d+@\S+ #2<", lanes)
        assert 'class="lost"' in lanes
        screenshots.take(page, "fits-failed", full_page=True)
        for failure in failures:
            page = person.open(f"/ui/fanouts/{survey.run_id}/chunks/{failure['chunk_id']}")
            expect(page.locator("main")).to_contain_text(re.compile("faults.py.*in act", re.DOTALL))
        (printing,) = (each["chunk_id"] for each in survey.chunks() if each["start"] // fits.CHUNK_SIZE == fits.PRINTS)
        page = person.open(f"/ui/fanouts/{survey.run_id}/chunks/{printing}")
        expect(page.locator("main")).to_contain_text("the last line")

        survey.fix()
        person.open(f"/ui/fanouts/{survey.run_id}")
        person.press("Redrive failed chunks", reason="fixed")
        survey.until_status("COMPLETED")

        page = person.open(f"/ui/fanouts/{survey.run_id}")
        expect(page.locator("main")).to_contain_text("SUCCEEDED")
        screenshots.take(page, "fits-done", full_page=True)
        assert person.problems_of_page() == []
        person.close()
        assert fits.wrong_fits(survey) == []
        survey.server.signal(signal.SIGTERM)
        survey.server.exit_code(60.0)
    assert fits.left_behind(survey.folder) == []
