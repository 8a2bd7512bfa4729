"""A person in Chromium: signs in, opens pages, presses actions. Everything that goes wrong in the browser is kept."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request, Response, expect

from tests.acceptance.browser.world import SECONDS_MAX
from tests.acceptance.program import until

WIDTH: Final = 1400
HEIGHT: Final = 950
PHONE_WIDTH: Final = 390
_AXE: Final[str] = Axe().axe_script
_WCAG: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
# Counts how often the page has fetched its content again, and keeps what the content security policy refused.
_INIT: Final = """
window.refreshes = 0;
window.refusals = [];
document.addEventListener("headgate:refreshed", () => { window.refreshes += 1; });
document.addEventListener("securitypolicyviolation", (event) => {
  window.refusals.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""
# The first message of the stream makes the page fetch its content once.
_IS_DRAWN: Final = """
(!document.body.dataset.changes || window.refreshes > 0) &&
[...document.querySelectorAll("hg-log, hg-heatmap, hg-graph, hg-chart, hg-gantt")].every((each) => each.children.length)
"""
_IS_ANSWERED: Final = """
!document.querySelector("#dialog[open]") || document.querySelector("#dialog #revealed, #dialog .problem:not([hidden])")
"""


class Person:
    """A person with one open page, signed in unless the server asks for no key."""

    def __init__(self, browser: Browser, url: str, key: str | None, **options: Any) -> None:
        self.url = url
        self.problems: list[str] = []
        self._context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce", timezone_id="Europe/Berlin", **options
        )
        self._context.set_default_timeout(SECONDS_MAX * 1000)
        self._context.add_init_script(_INIT)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page: Page = self._context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("requestfailed", self._on_failed)
        self.page.on("response", self._on_response)
        if key is not None:
            self.page.goto(f"{url}/ui/sign-in")
            self.page.fill("#key", key)
            self.page.click("button[type=submit]")
            self.page.wait_for_url(f"{url}/ui")

    def open(self, address: str) -> Page:
        """Open a page, and wait until it is live and drawn."""
        answer = self.page.goto(self.url + address)
        assert answer is not None
        assert answer.status == 200, f"{address}: {answer.status}"
        self.wait("the page is live and drawn", _IS_DRAWN)
        return self.page

    def wait(self, what: str, script: str) -> None:
        """Wait until an expression is true in the page, whose policy does not let Playwright poll it there."""
        until(lambda: self._is_true(script), what, SECONDS_MAX)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.page.evaluate(script))
        except Error as exc:
            # An action may lead to another page while the question is on its way: it is asked again there.
            if "Execution context was destroyed" not in exc.message:
                raise
            return False

    def problems_of_page(self) -> list[str]:
        """Return what went wrong since the last call: in scripts, requests and the content security policy."""
        found, self.problems = self.problems, []
        return [*found, *self.page.evaluate("window.refusals.splice(0)")]

    def barriers(self, *, only: tuple[str, ...] = ()) -> list[str]:
        """Return what axe finds against WCAG 2 A and AA, or against some rules."""
        run = {"type": "rule", "values": only} if only else {"type": "tag", "values": _WCAG}
        # Once for each page: its half a megabyte takes longer to load than to run.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE)
        options = {"runOnly": run, "resultTypes": ["violations"]}
        violations = self.page.evaluate("async options => (await axe.run(options)).violations", options)
        return [
            f"{rule['id']}: {node['target']} {node['html'][:160]} {_facts(node)}"
            for rule in violations
            for node in rule["nodes"]
        ]

    def dark(self, *, is_on: bool = True) -> None:
        self.page.emulate_media(color_scheme="dark" if is_on else "light")

    def resize(self, width: int = WIDTH) -> None:
        self.page.set_viewport_size({"width": width, "height": HEIGHT})

    def overflow(self) -> list[str]:
        """Return what makes the page scroll sideways."""
        found: list[str] = self.page.evaluate(
            """() => document.documentElement.scrollWidth <= window.innerWidth ? [] :
            [...document.querySelectorAll('main *, header *')]
              .filter((each) => each.getBoundingClientRect().right > window.innerWidth + 1 && !each.closest('.scroll'))
              .slice(-5).map((each) => each.outerHTML.slice(0, 160))"""
        )
        return found

    def button(self, label: str, *, within: str = "body") -> Locator:
        """Return the button of an action. Actions in a menu are shown first."""
        self.page.evaluate(
            "document.querySelectorAll('main details:has(button[data-action])').forEach(each => { each.open = true; })"
        )
        return self.page.locator(f"{within} button[data-action]").filter(has_text=_whole(label)).first

    def press(self, label: str, *, within: str = "body", **values: str | bool) -> None:
        """Press an action, fill its dialog and send it. `__` in a name stands for a dot."""
        self.button(label, within=within).click()
        dialog = self.page.locator("#dialog")
        expect(dialog.locator("h2")).to_have_text(label)
        for name, value in values.items():
            field = dialog.locator(f"[name='{name.replace('__', '.')}']")
            if isinstance(value, bool):
                field.set_checked(value)
            elif field.evaluate("each => each.localName") == "select":
                field.select_option(value)
            else:
                field.fill(value)
        dialog.locator("button[type=submit]").click()
        # It closes when the API has accepted it, or shows a secret of the answer, or the problem.
        self.wait(f"the answer to {label}", _IS_ANSWERED)
        problem = dialog.locator(".problem:not([hidden])")
        assert problem.count() == 0, f"{label}: refused: {problem.text_content()}"
        if dialog.locator("#revealed").count():
            dialog.get_by_role("button", name="Close").click()

    def actions(self) -> list[dict[str, Any]]:
        """Return the actions of the page."""
        texts = self.page.eval_on_selector_all("button[data-action]", "all => all.map(each => each.dataset.action)")
        return [json.loads(each) for each in texts]

    def close(self) -> None:
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_failed(self, request: Request) -> None:
        # Opening another page ends the stream of the last one.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"request: {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"request: {response.url}: {response.status}")


def _whole(label: str) -> re.Pattern[str]:
    return re.compile(rf"^\s*{re.escape(label)}\s*$")


def _facts(node: dict[str, Any]) -> str:
    return "; ".join(each["message"] for each in (*node["any"], *node["all"], *node["none"]))[:300]
