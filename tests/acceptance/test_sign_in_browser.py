"""A person in Chromium: signs in, follows a link of another site, presses an action, signs out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.acceptance.program import Server, run

WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 86_400, "End": True}}}
SECONDS_MAX = 60
BLANK = "<title>another site</title>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium: not installed; 'make services' installs it"
    expect.set_options(timeout=SECONDS_MAX * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("browser"), HEADGATE_AUTH_REQUIRED="true") as server:
        yield server


def test_browser__signs_in_acts_and_signs_out(chromium: Browser, server: Server, tmp_path: Path) -> None:
    made = run("api-key", "first", "--home", server.home, "--json", folder=tmp_path)
    key = json.loads(made.stdout)["text"]
    execution_id = _waiting_execution(server, key)
    context = chromium.new_context()
    context.set_default_timeout(SECONDS_MAX * 1000)
    context.route("http://another.example/**", lambda route: route.fulfill(body=BLANK, content_type="text/html"))
    page = context.new_page()

    page.goto(f"{server.url}/ui/executions/{execution_id}")
    page.fill("#key", key)
    page.click("button[type=submit]")
    page.wait_for_url(f"**/ui/executions/{execution_id}")
    expect(page.locator(".who")).to_have_text("admin")

    # The cookie is withheld from a request that another site causes, and the person still sees the page.
    other = context.new_page()
    other.goto("http://another.example/")
    other.evaluate("address => { location.href = address; }", f"{server.url}/ui/executions")
    expect(other.locator(".who")).to_have_text("admin")
    other.close()

    # Some actions are in a menu.
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.get_by_role("button", name="Terminate").first.click()
    page.fill("#dialog [name=reason]", "it waits for nothing")
    page.click("#dialog button[type=submit]")
    expect(page.locator("#toasts")).not_to_be_empty()
    status = _api(server, key, "GET", f"/executions/{execution_id}")["status"]
    assert status == "TERMINATED"

    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/sign-in")
    page.goto(f"{server.url}/ui")
    page.wait_for_url("**/ui/sign-in?next=/ui")
    context.close()


def _waiting_execution(server: Server, key: str) -> str:
    _api(server, key, "PUT", "/machines/waiting", WAITING)
    return str(_api(server, key, "POST", "/machines/waiting/executions", {"input": {}})["id"])


def _api(server: Server, key: str, method: str, path: str, body: object = None) -> Any:
    answer = httpx.request(
        method, f"{server.url}/api/v1{path}", json=body, headers={"authorization": f"Bearer {key}"}, timeout=20
    )
    assert answer.is_success, answer.text
    return answer.json()


def test_browser__rotates_the_key_of_its_own_session__sees_the_new_text_once(
    chromium: Browser, server: Server, tmp_path: Path
) -> None:
    made = run("api-key", "first", "--home", server.home, "--json", folder=tmp_path)
    issued = json.loads(made.stdout)
    context = chromium.new_context()
    context.set_default_timeout(SECONDS_MAX * 1000)
    page = context.new_page()
    page.goto(f"{server.url}/ui/settings")
    page.fill("#key", issued["text"])
    page.click("button[type=submit]")
    page.wait_for_url("**/ui/settings")

    row = page.locator(f"tr[data-key='{issued['key']['key_id']}']")
    row.get_by_role("button", name="Rotate").click()
    page.fill("#field-overlap", "0s")
    expect(page.locator("dialog .cli code")).to_have_text(
        f"headgate api-key rotate {issued['key']['key_id']} --overlap 0s"
    )
    page.click("#dialog button[type=submit]")
    text = page.locator("#revealed").inner_text()

    # The rotation has ended this session. The text stays until the person closes the dialog.
    answer = httpx.get(f"{server.url}/api/v1/api-keys", headers={"authorization": f"Bearer {text}"})
    assert answer.status_code == 200, answer.text
    page.keyboard.press("Escape")
    expect(page.locator("#revealed")).to_have_text(text)
    assert text not in page.url
    page.get_by_role("button", name="Close", exact=True).click()
    page.wait_for_url("**/ui/sign-in?next=/ui/settings")
    assert text not in page.content()
    context.close()
