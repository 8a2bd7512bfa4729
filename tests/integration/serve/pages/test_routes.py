"""Pages: what they show to whom, that nothing that users wrote runs in a browser, and updates on changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import httpx
import msgspec
import pytest
from litestar.types import Receive, Send

from headgate.auth.authenticator import Authenticator
from headgate.auth.roles import Role
from headgate.durable.bus.events import Event
from headgate.serve.application import build_http
from headgate.serve.pages import labels
from headgate.serve.pages.health.signal_strip import DAYS, HEIGHT, WIDTH, strip
from headgate.serve.pages.routes import page_routes
from headgate.serve.rest.health.models import SignalUpdateIn
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.settings import Settings
from headgate.telemetry import Metrics, Tracing
from tests.integration.serve.graphql_board import Stream
from tests.integration.serve.health_rig import ORDERS, PAYMENTS, SIGNATURE, HealthApi, done, evidence_id, of
from tests.integration.serve.pages.shown_commands import refused

ORIGIN: Final = "http://127.0.0.1:8400"
HOSTILE: Final = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
VOID: Final = {"meta", "link", "input", "br", "img"}
PAGES: Final = ("/ui", "/ui/datasets", "/ui/incidents")
BROWSER: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Site(HealthApi):
    """The application with its pages."""

    def __init__(
        self, home: Path, *, is_required: bool = False, has_pipelines: bool = False, settings: Settings | None = None
    ) -> None:
        super().__init__(home, is_required=is_required, is_whole=has_pipelines, settings=settings)
        self.is_stopping = False
        self.incidents: dict[str, str] = {}
        api = self.app
        pages = build_http(
            version="1.2.3",
            probes=self.server_health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=self.clock,
            routes=page_routes(
                self.health,
                self.pool,
                WatchHub(self.opened.store, stopping=lambda: self.is_stopping),
                self.routes,
                self.pipelines.service if has_pipelines else None,
            ),
            authenticator=Authenticator(self.keys, is_required=is_required),
        )

        async def both(scope: Any, receive: Receive, send: Send) -> None:
            await (api if scope["path"].startswith("/api/v1") else pages)(scope, receive, send)

        self.app = both

    def page(self, path: str, *, status: int = 200, **more: Any) -> str:
        """Return a page, which is valid, lets nothing foreign run, and shows only commands that exist."""
        answer = self.get(ORIGIN + path, **more)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'; script-src 'self';" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        Document.read(answer.text)
        assert refused(answer.text) == []
        return answer.text

    def dataset_page(self, urn: str = ORDERS, **more: Any) -> str:
        return self.page(f"/ui/datasets/{quote(urn, safe='')}", **more)

    def incident_page(self, incident_id: str, **more: Any) -> str:
        return self.page(f"/ui/incidents/{quote(incident_id, safe='')}", **more)

    def trouble(self, urn: str = ORDERS) -> str:
        """Have a dataset with an incident, evidence and lineage, and return the incident."""
        self.dataset(urn, slos={"freshness": {"max_delay_seconds": 3600}}, display_name="Orders")
        self._made += 2
        good, bad = self._made - 1, self._made
        for number, result, minutes in ((good, "PASS", -3), (bad, "FAIL", -1)):
            producer = {"producer_id": "orders-service", "version": f"v-{result}"}
            given = self.evidence(number, urn, result=result, created_at=self.at(minutes), producer=producer)
            done(self.post("/evidence", given), 201)
        self.signal("OK", urn, minutes=-60)
        sample = [evidence_id(bad)]
        self.signal("CRITICAL", urn, evidence_sample=sample, breach_start=self.at(-2))
        (found,) = self.get("/incidents", params={"dataset_urn": urn}).json()["items"]
        return str(found["incident_id"])


class Document(HTMLParser):
    """A page as a browser takes it apart. Reading one fails where its tags do not close each other."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    @classmethod
    def read(cls, text: str) -> Document:
        found = cls()
        found.feed(text)
        found.close()
        assert found.open == []
        ids = [each["id"] for _, each in found.tags if "id" in each]
        assert len(ids) == len(set(ids)), "an id is there twice"
        for tag, attributes in found.tags:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
            address = attributes.get("href") or attributes.get("src") or ""
            assert address.startswith(("/", "#", "data:,")) or not address, "it is not ours"
        assert [tag for tag, _ in found.tags].count("script") <= 1
        return found

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def links(self) -> list[str]:
        return [str(each["href"]) for tag, each in self.tags if tag == "a" and each.get("href")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), "an attribute is there twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"{tag} ends, and has not begun"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def text_of(html: str) -> str:
    return Document.read(html).text


def actions_of(html: str) -> dict[str, dict[str, Any]]:
    """Return the actions of a page by label."""
    buttons = [each for tag, each in Document.read(html).tags if tag == "button"]
    sent = [each["data-action"] for each in buttons if each.get("data-action")]
    return {each["title"]: each for each in (msgspec.json.decode(str(text)) for text in sent)}


def graph_of(html: str) -> Any:
    """Return the graph of a page."""
    (found,) = [each["data-graph"] for tag, each in Document.read(html).tags if tag == "hg-graph"]
    return msgspec.json.decode(str(found))


@contextmanager
def opened(home: Path, *, is_required: bool = False) -> Iterator[Site]:
    made = Site(home, is_required=is_required)
    try:
        yield made
    finally:
        made.is_stopping = True
        made.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with opened(tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Nothing is there, for tests that only look."""
    with opened(tmp_path_factory.mktemp("empty") / "home") as made:
        yield made


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two datasets with all that a page can show, one written from the other, for tests that only look."""
    with opened(tmp_path_factory.mktemp("troubled") / "home") as made:
        made.incidents = {urn: made.trouble(urn) for urn in (ORDERS, PAYMENTS)}
        spec = made.spec(reads=[ORDERS], writes=[PAYMENTS])
        done(made.put(f"/lineage/specs/{quote(spec['spec_id'], safe='')}", spec), 200)
        result = {"oncall_user": "bob@example.com", "notification_state": {"jira_ticket": "OPS-7"}}
        done(made.patch(f"/incidents/{made.incidents[ORDERS]}", result), 200)
        # The graph of the lineage is looked at anew after a second.
        made.clock.advance(5)
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everyone must say who they are."""
    with opened(tmp_path_factory.mktemp("guarded") / "home", is_required=True) as made:
        yield made


# Where pages are.


def test_index__a_browser__is_led_to_the_pages(empty: Site) -> None:
    answer = empty.get(f"{ORIGIN}/", headers={"accept": BROWSER})

    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_index__a_program__is_given_what_there_is(empty: Site, accept: str) -> None:
    found = done(empty.get(f"{ORIGIN}/", headers={"accept": accept}), 200)

    assert found["links"]["pages"] == "/ui"


def test_pages__all_links_of_a_site_with_trouble__lead_somewhere(troubled: Site) -> None:
    seen: set[str] = set()
    waiting = ["/ui"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = troubled.get(ORIGIN + path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        if answer.headers["content-type"].startswith("text/html"):
            found = [each.partition("#")[0] for each in Document.read(answer.text).links]
            waiting += [each for each in dict.fromkeys(found) if each and each not in seen and each not in waiting]

    assert {"/ui/datasets", "/ui/incidents"} <= seen
    assert any(each.startswith("/api/v1/incidents/INC-") and each.endswith("/context") for each in seen)
    assert any(each.startswith("/ui/incidents?") and "severity=SEV_1" in each for each in seen)


def test_assets__linked_or_imported_by_a_page__are_served_under_an_address_of_their_content(empty: Site) -> None:
    linked = re.findall(r'"(/ui/assets/[0-9a-f]+/[a-z]+\.(?:css|js))"', empty.page("/ui"))
    assert sorted(each.rpartition("/")[2] for each in linked) == ["app.js", "style.css"]
    found: dict[str, str] = {}
    while linked:
        address = linked.pop()
        answer = empty.get(ORIGIN + address)
        assert answer.status_code == 200, address
        assert answer.headers["content-type"].startswith("text/")
        assert "immutable" in answer.headers["cache-control"]
        found[address] = answer.text
        folder = address.rpartition("/")[0]
        imported = {
            f"{folder}/{name}"
            for name in re.findall(r'from "\./([a-z]+\.js)"|import "\./([a-z]+\.js)"', answer.text)
            for name in name
            if name
        }
        linked += sorted(imported - set(found) - set(linked))
    assert len(found) > 10
    for address, text in found.items():
        # The policy of the pages blocks every foreign address.
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), address


def test_assets__unknown__is_not_found(empty: Site) -> None:
    assert empty.get(f"{ORIGIN}/ui/assets/0/nope.js").status_code == 404
    assert empty.get(f"{ORIGIN}/ui/assets/0/..%2Froutes.py").status_code == 404


def test_search__a_part_of_a_name__finds_what_the_caller_may_read(troubled: Site) -> None:
    hits = troubled.get(f"{ORIGIN}/ui/search", params={"q": ORDERS[7:]}).json()["items"]

    assert {name: hits[0][name] for name in ("kind", "label")} == {"kind": "dataset", "label": ORDERS}
    assert troubled.get(ORIGIN + hits[0]["href"]).status_code == 200
    assert "incident" in {each["kind"] for each in hits}


def test_search__nothing_asked__offers_the_pages(empty: Site) -> None:
    hits = empty.get(f"{ORIGIN}/ui/search").json()["items"]

    assert {"page"} == {each["kind"] for each in hits}
    assert all(empty.get(ORIGIN + each["href"]).status_code == 200 for each in hits)


def test_search__no_one_known__is_refused(guarded: Site) -> None:
    assert guarded.get(f"{ORIGIN}/ui/search", params={"q": "orders"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nope",
        "/ui/datasets/urn%3Adp%3Anone",
        "/ui/incidents/INC-NONE",
        "/ui/a%2Fb/c",
        "/ui/datasets/a%2Fb",
        "/ui/incidents/a/b/c",
    ],
)
def test_page__of_nothing__says_so_as_a_page(empty: Site, path: str) -> None:
    said = text_of(empty.page(path, status=404))

    assert "Not Found" in said
    assert "To the first page" in said


def test_page__of_a_name_that_is_none__says_what_is_wrong(empty: Site) -> None:
    assert "Invalid dataset URN format" in text_of(empty.page("/ui/datasets/%3Cscript%3E", status=400))
    assert "not one of" in text_of(empty.page("/ui/incidents?severity=nonsense", status=400))
    empty.page("/ui/datasets?page_token=nonsense", status=400)


# The board.


def test_board__nothing_registered__reports_the_command_that_begins(empty: Site) -> None:
    said = text_of(empty.page("/ui"))

    assert "No datasets yet" in said
    assert "headgate dataset register urn:dp:orders:created --team orders --freshness 1h" in said


def test_board__all_is_well__says_so(site: Site) -> None:
    site.dataset()
    site.signal("OK")

    assert "All healthy" in text_of(site.page("/ui"))


def test_board__trouble__has_one_card_an_incident_worst_first(site: Site) -> None:
    for number, tier in enumerate(("TIER_3", "TIER_2"), 1):
        urn = f"urn:dp:board:number-{number}"
        site.dataset(urn, tier=tier)
        site.signal("CRITICAL", urn)
        site.clock.advance(60)
    said = text_of(site.page("/ui"))

    assert said.index("urn:dp:board:number-2") < said.index("urn:dp:board:number-1")
    # The signals of an incident are part of its card.
    assert "Signals in breach" not in said
    assert "1 SEV_3 incidents" in said
    assert "unassigned" in said
    assert "escalates in" in said
    assert "All healthy" not in said


def test_board__a_window_of_days_ago_is_in_breach__since_is_its_detection_as_on_the_dataset_page(site: Site) -> None:
    site.dataset()
    site.signal("CRITICAL", minutes=-60 * 24 * 7)
    site.clock.advance(45)
    board, dataset = text_of(site.page("/ui")), text_of(site.dataset_page())

    assert "OPEN since 45 s ago" in board
    assert "BLOCK since 45 s ago" in dataset
    assert "45 s ago" in dataset[dataset.index("Last 7 days") :]


def test_board__a_signal_that_recovers__is_no_longer_on_it(site: Site) -> None:
    site.dataset()
    site.signal("WARNING", minutes=-5)
    assert SIGNATURE in text_of(site.page("/ui"))
    site.signal("OK")

    assert SIGNATURE not in text_of(site.page("/ui"))


# Lineage.


def test_lineage__of_a_dataset__is_a_graph_that_expands_by_a_step(troubled: Site) -> None:
    orders = graph_of(troubled.page(f"/ui/lineage?dataset={quote(ORDERS, safe='')}"))
    found = troubled.get(f"{ORIGIN}/ui/lineage/expand", params={"node": PAYMENTS, "way": "up"}).json()

    assert orders["focus"] == ORDERS
    assert {PAYMENTS, ORDERS} <= {each["id"] for each in orders["nodes"]}
    assert sorted(orders["edges"]) == sorted(found["edges"])
    assert troubled.get(f"{ORIGIN}/ui/lineage/expand", params={"node": PAYMENTS, "way": "left"}).status_code == 400


def test_lineage__no_dataset_chosen__offers_those_with_most_links_first(troubled: Site) -> None:
    assert f"/ui/lineage?dataset={quote(ORDERS, safe='')}" in Document.read(troubled.page("/ui/lineage")).links


def test_lineage__outside_of_the_scope__is_neither_drawn_nor_expanded(troubled: Site) -> None:
    key = troubled.key("narrow", Role.VIEWER, scopes=[ORDERS])
    graph = graph_of(troubled.page(f"/ui/lineage?dataset={quote(ORDERS, safe='')}", key=key))

    assert PAYMENTS not in {each["id"] for each in graph["nodes"]}
    assert graph["hidden"] == 1
    answer = troubled.get(f"{ORIGIN}/ui/lineage/expand", params={"node": PAYMENTS, "way": "up"}, key=key)
    assert answer.status_code in (403, 404)


def test_lineage__no_one_known__is_refused(guarded: Site) -> None:
    answer = guarded.get(f"{ORIGIN}/ui/lineage/expand", params={"node": ORDERS, "way": "up"})
    assert answer.status_code == 401


def test_pages__reopened_incident_of_an_old_window__give_one_since(site: Site) -> None:
    incident = site.trouble()
    site.signal("OK", minutes=1)
    done(site.patch(f"/incidents/{incident}", {"status": "RESOLVED"}), 200)
    site.clock.advance(600)
    site.signal("CRITICAL", minutes=-4)
    found = done(site.get(f"/incidents/{incident}"), 200)
    signal = done(site.get(f"{of(ORDERS)}/signals/FRESHNESS"), 200)
    assert found["episode"] == 2
    assert signal["detected_at"] == found["episode_started_at"]

    stamp = f'datetime="{found["episode_started_at"]}"'
    for page in (site.page("/ui"), site.dataset_page(), site.incident_page(incident), site.page("/ui/incidents")):
        assert stamp in page


def test_incident__resolved_while_critical__says_until_when_it_is_silent(site: Site) -> None:
    incident = site.trouble()
    done(site.patch(f"/incidents/{incident}", {"status": "RESOLVED"}), 200)

    said = text_of(site.incident_page(incident))

    assert "Still CRITICAL when it was resolved. The same breach opens no incident until" in said
    for page in (site.page("/ui"), site.dataset_page()):
        assert "silent until" in text_of(page)
        assert f"/ui/incidents/{incident}" in page
    site.clock.advance(3601)
    assert "silent until" not in text_of(site.dataset_page())
    assert "opens no incident until" not in text_of(site.incident_page(incident))


def test_dataset__fed_by_an_unhealthy_one__names_it_with_a_link(site: Site) -> None:
    site.trouble()
    spec = site.spec(reads=[ORDERS], writes=[PAYMENTS])
    done(site.put(f"/lineage/specs/{quote(spec['spec_id'], safe='')}", spec), 200)
    site.dataset(PAYMENTS)
    site.signal("OK", PAYMENTS)
    site.clock.advance(5)

    page = site.dataset_page(PAYMENTS)

    said = text_of(page)
    assert "UPSTREAM_UNHEALTHY" in said
    assert "1 hop upstream" in said
    assert f'href="/ui/datasets/{quote(ORDERS, safe="")}"' in page


def test_dataset__no_report_within_its_slo__says_since_when(site: Site) -> None:
    site.dataset(slos={"freshness": {"max_delay_seconds": 3600}})
    site.signal("OK", window_type="")
    site.clock.advance(3 * 3600)

    said = text_of(site.dataset_page())

    assert "FRESHNESS_OVERDUE" in said
    assert "at most 1 h late; no report in time since" in said
    site.health.sweep()
    assert "CRITICAL FRESHNESS" in text_of(site.dataset_page())
    assert "no report on its freshness came in time" in text_of(site.page("/ui"))


# Datasets.


def test_dataset__with_trouble__is_reported_whole(troubled: Site) -> None:
    incident = troubled.incidents[ORDERS]
    page = troubled.dataset_page()
    said = text_of(page)

    for fact in (
        "Gate BLOCK",
        "SIGNAL_CRITICAL",
        "CRITICAL FRESHNESS",
        SIGNATURE,
        "orders-etl",
        "at most 1 h late",
        "team-a",
        f"headgate gate check {ORDERS}",
        "OPEN",
    ):
        assert fact in said
    assert f"/ui/incidents/{incident}" in page
    assert f'href="/api/v1/datasets/{quote(ORDERS, safe="")}"' in page
    assert 'class="critical" x=' in page


def test_dataset__without_its_version__is_the_one_that_is_registered(troubled: Site) -> None:
    assert "SIGNAL_CRITICAL" in text_of(troubled.dataset_page(ORDERS.removesuffix(":v1")))


def test_dataset__an_openlineage_event__shows_its_writer_and_its_volume(site: Site) -> None:
    facets = {"outputStatistics": {"_producer": "p", "_schemaURL": "s", "rowCount": 1234}}
    output = {"namespace": "warehouse", "name": "clean.orders", "outputFacets": facets}
    answer = site.post("/lineage", site.run_event(outputs=[output]))
    assert answer.status_code == 201
    before = text_of(site.page("/ui/datasets"))
    assert site.health.drain() == 1

    assert "clean" not in before
    (urn,) = [each["dataset_urn"] for each in site.get("/datasets").json()["items"] if "clean" in each["dataset_urn"]]
    assert urn in text_of(site.page("/ui/datasets"))
    said = text_of(site.dataset_page(urn))
    assert "DISCOVERED" in said
    assert "orders_etl JOB" in said[said.index("Writers") : said.index("Readers")]
    assert "OK VOLUME" in said


def test_datasets__filters__narrow_the_list_and_go_on_to_its_next_page(site: Site) -> None:
    for number in range(55):
        site.dataset(f"urn:dp:many:number-{number:02d}", tier="TIER_2" if number else "TIER_3")
    page = site.page("/ui/datasets?tier=TIER_2&search=&owner_team=team-a")
    (link,) = [each for each in Document.read(page).links if "page_token" in each]
    following = text_of(site.page(link))

    assert "number-00" not in page
    assert "number-50 " in text_of(page)
    assert "number-51" not in page
    assert "number-51" in following
    assert "tier=TIER_2" in link
    assert "headgate dataset ls --tier TIER_2 --team team-a" in text_of(page)
    assert "No dataset matches" in text_of(site.page("/ui/datasets?search=nothing-like-it"))


# Incidents.


def test_incident__with_evidence__reports_why(troubled: Site) -> None:
    incident = troubled.incidents[ORDERS]
    page = troubled.incident_page(incident)
    said = text_of(page)

    facts = (
        "OPEN since",
        "unassigned",
        "escalates",
        "OK → CRITICAL",
        "G4_CONTRACT",
        "Last good",
        "First bad",
        "Impact",
    )
    for fact in facts:
        assert fact in said
    assert f"headgate incident ack {incident} --assign {{assignee}}" == actions_of(page)["Acknowledge"]["cli"]
    assert f"headgate incident why {incident}" in said
    assert re.findall(r'class="differs"><th scope="row">([^<]+)<', page) == ["Producer version"]
    assert f"/api/v1/incidents/{incident}/context" in page


def test_incident__resolved__offers_to_reopen_it_alone(site: Site) -> None:
    incident = site.trouble()
    body = {"status": "RESOLVED", "resolution": {"root_cause": "a bad deploy"}}
    done(site.patch(f"/incidents/{incident}", body), 200)
    page = site.incident_page(incident)

    assert list(actions_of(page)) == ["Reopen"]
    assert "a bad deploy" in text_of(page)


def test_incident__each_action__does_what_it_says(site: Site) -> None:
    incident, other = site.trouble(), site.trouble(PAYMENTS)

    def press(label: str, **fields: Any) -> str:
        action = actions_of(site.incident_page(incident))[label]
        headers = {"if-match": action["ifMatch"]} if action["ifMatch"] else {}
        send = site.patch if action["method"] == "PATCH" else site.post
        done(send(ORIGIN + action["path"], {**action["body"], **fields}, headers=headers), 200)
        return text_of(site.incident_page(incident))

    assert list(actions_of(site.incident_page(incident)))[:2] == ["Acknowledge", "Resolve"]
    assert "ACKNOWLEDGED since" in press("Acknowledge", assignee="ann")
    assert "bob" in press("Assign", assignee="bob")
    assert "a field was dropped" in press("Note the cause", rca_summary="a field was dropped")
    assert "RESOLVED just now" in press("Resolve", resolution={"root_cause": "a bad deploy"})
    assert "OPEN since" in press("Reopen", reason="it is back")
    assert "Snoozed until" in press("Snooze", duration="1h")
    assert f"Merged into {other}" in press("Merge", into=other)
    assert actions_of(site.incident_page(incident)) == {}


def test_incident__changed_since_the_page_was_drawn__is_not_overwritten(site: Site) -> None:
    incident = site.trouble()
    action = actions_of(site.incident_page(incident))["Resolve"]
    done(site.patch(f"/incidents/{incident}", {"assignee": "ann"}), 200)

    body = {**action["body"], "resolution": {"root_cause": "none"}}
    answer = site.patch(ORIGIN + action["path"], body, headers={"if-match": action["ifMatch"]})
    assert answer.status_code == 412


def test_incident__with_readers__draws_what_is_downstream(troubled: Site) -> None:
    page = troubled.incident_page(troubled.incidents[ORDERS])
    graph = graph_of(page)

    assert {each["id"] for each in graph["nodes"] if each["kind"] == "dataset"} == {ORDERS, PAYMENTS}
    assert {each["tone"] for each in graph["nodes"] if each["kind"] == "dataset"} == {"bad"}
    assert len(graph["edges"]) == 2


def test_incidents__filters__narrow_the_list(troubled: Site) -> None:
    incident, other = troubled.incidents[ORDERS], troubled.incidents[PAYMENTS]
    page = troubled.page(f"/ui/incidents?status=OPEN&severity=SEV_3&dataset_urn={quote(ORDERS)}&owner_team=")

    assert incident in page
    assert other not in page
    assert f"headgate incident ls --status OPEN --severity SEV_3 --dataset {ORDERS}" in text_of(page)
    assert "No incident matches" in text_of(troubled.page("/ui/incidents?severity=SEV_1&owner_team=nobody"))


def test_incidents__none__says_when_one_is_opened(empty: Site) -> None:
    assert "No incidents yet" in text_of(empty.page("/ui/incidents"))


# What users wrote.


def test_pages__markup_in_all_that_users_write__is_shown_and_never_runs(site: Site) -> None:
    site.dataset(
        ORDERS,
        display_name=HOSTILE,
        description=HOSTILE,
        owner_team=HOSTILE,
        owner_email=HOSTILE,
        oncall_rotation=HOSTILE,
        source={"type": HOSTILE, "topic": HOSTILE},
        tags={HOSTILE: HOSTILE},
    )
    signature = "X:" + HOSTILE.replace(" ", "/")
    site.signal("CRITICAL", failure_signature=signature, top_producer={"producer_id": HOSTILE, "version": HOSTILE})
    incident = site.incident(title=HOSTILE, oncall_user=HOSTILE, failure_signatures=["OTHER:x"], trace_id=HOSTILE)
    name = str(incident["incident_id"])
    body = {"assignee": HOSTILE, "rca_summary": HOSTILE, "notification_state": {"jira_ticket": HOSTILE}}
    done(site.patch(f"/incidents/{name}", body), 200)
    entity = {"dataset_urn": ORDERS, "entity_id": "job:orders-etl", "entity_name": HOSTILE, "entity_type": "JOB"}
    spec = site.spec(dataset_writes=[entity], dataset_reads=[entity])
    done(site.put(f"/lineage/specs/{quote(spec['spec_id'], safe='')}", spec), 200)

    paths = (
        *PAGES,
        f"/ui/datasets/{quote(ORDERS, safe='')}",
        f"/ui/incidents/{name}",
        f"/ui/datasets?search={quote(HOSTILE)}&owner_team={quote(HOSTILE)}",
        f"/ui/incidents?owner_team={quote(HOSTILE)}",
    )
    for path in paths:
        page = site.page(path)
        assert "<script>" not in page, path
        assert "<img" not in page, path
        assert HOSTILE in Document.read(page).text or HOSTILE in str(Document.read(page).tags), path


# Who sees what.


def test_scope__a_key_for_some_datasets__sees_these_alone(troubled: Site) -> None:
    key = troubled.key("limited", Role.ADMIN, scopes=("urn:dp:orders:*",))

    for path in PAGES:
        page = troubled.page(path, key=key)
        assert ORDERS in page
        assert PAYMENTS not in page
    page = troubled.dataset_page(key=key)
    assert PAYMENTS not in page
    assert "1 dataset outside your scope is not shown" in text_of(page)
    assert "its scopes are" in text_of(troubled.dataset_page(PAYMENTS, status=403, key=key))
    assert "its scopes are" in troubled.incident_page(troubled.incidents[PAYMENTS], status=403, key=key)
    troubled.page(f"/ui/incidents?dataset_urn={quote(PAYMENTS)}", status=403, key=key)


def test_scope__a_viewer__sees_secret_fields_masked(troubled: Site) -> None:
    incident = troubled.incidents[ORDERS]

    assert "bob@example.com" in troubled.incident_page(incident)
    page = troubled.incident_page(incident, key=troubled.key("viewer", Role.VIEWER))
    assert "***" in page
    assert "bob@example.com" not in page
    assert "OPS-7" not in page


def test_scope__a_role_that_may_read_only_some_parts__is_given_what_is_not_shown(troubled: Site) -> None:
    incident = troubled.incidents[ORDERS]
    key = troubled.key("gate", Role.ENFORCER)
    said = text_of(troubled.dataset_page(key=key))

    assert "BLOCK" in said
    assert "Not available. gate: may not signal.read" in said
    assert "Not available. gate: may not incident.read" in said
    assert "no signals" in text_of(troubled.page("/ui/datasets", key=key))
    board = text_of(troubled.page("/ui", key=key))
    assert "may not incident.read" in board
    assert "All healthy" not in board
    troubled.incident_page(incident, status=403, key=key)


def test_pipelines__a_server_without__has_no_link_to_them_and_says_how_to_get_some(empty: Site) -> None:
    said = text_of(empty.page("/ui/pipelines", status=404))

    assert "headgate up --pipelines" in said
    assert "/ui/pipelines" not in empty.page("/ui")


def test_scope__no_one_known__sees_no_page_but_how_to_say_who_they_are(guarded: Site) -> None:
    for path in (*PAGES, "/ui/datasets/urn%3Adp%3Ax", "/ui/incidents/INC-1"):
        answer = guarded.get(ORIGIN + path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "Authorization: Bearer" in text_of(answer.text).replace("&#39;", "'")
    assert guarded.get(f"{ORIGIN}/ui/changes").status_code == 401
    assert guarded.get(f"{ORIGIN}/ui/assets/0/style.css").status_code == 200


# Staying up to date.


def test_fragment__asked_for__is_the_inside_of_the_page_alone(troubled: Site) -> None:
    for path in (*PAGES, f"/ui/datasets/{quote(ORDERS, safe='')}"):
        answer = troubled.get(ORIGIN + path, headers={"headgate-fragment": "main"})
        whole = troubled.page(path)
        assert "<html" not in answer.text
        assert answer.text.partition("</template>")[2].strip() in whole
        assert answer.headers["vary"] == "headgate-fragment"


def following(
    site: Site,
    talk: Callable[[Stream, Callable[..., Coroutine[Any, Any, Any]]], Coroutine[Any, Any, None]],
    query: str = "",
    key: str | None = None,
) -> None:
    """Follow the changes while something happens."""
    stream = Stream(b"")
    headers = {"host": "127.0.0.1:8400", "accept": "text/event-stream"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    stream.scope |= {
        "method": "GET",
        "path": "/ui/changes",
        "raw_path": b"/ui/changes",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def session(_client: httpx.AsyncClient) -> None:
        app = cast("Callable[..., Coroutine[Any, Any, None]]", site.app)
        task = asyncio.create_task(app(stream.scope, stream.receive, stream.send))
        try:
            ready = await stream.event()
            assert ready is not None
            assert ready[0] == "ready"
            await talk(stream, asyncio.to_thread)
        finally:
            stream.left.set()
            await asyncio.wait_for(task, 10)

    site.session(session)


async def changed_kinds(stream: Stream) -> list[str]:
    """Return what the next message of a stream reports as changed."""
    found = await stream.event()
    assert found is not None
    assert found[0] == "changed"
    kinds: list[str] = found[1]["kinds"]
    return kinds


def _break(site: Site, urn: str, state: str = "CRITICAL") -> None:
    """Report a signal from a thread of its own, as another process would."""
    update = msgspec.convert(site.value(state), SignalUpdateIn).update(urn, "FRESHNESS")
    assert site.health.signals.update(update).is_success


def test_changes__a_signal_breaks__the_page_is_reported_it_and_its_incident(site: Site) -> None:
    site.dataset()
    site.clock.advance(60)

    async def talk(stream: Stream, apart: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        await apart(_break, site, ORDERS)
        assert await changed_kinds(stream) == ["incident", "signal"]

    following(site, talk)


def test_changes__of_another_dataset_or_outside_of_the_scope__are_not_reported(site: Site) -> None:
    site.dataset(ORDERS)
    site.dataset(PAYMENTS)
    key = site.key("limited", Role.VIEWER, scopes=("urn:dp:orders:*",))
    site.clock.advance(60)

    async def talk(stream: Stream, apart: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        await apart(_break, site, PAYMENTS)
        # What anyone may say is not what health says.
        forged = Event(type="headgate.incident.created", source="/elsewhere", data={"dataset_urn": ORDERS})
        await apart(site.service.bus.emit, forged)
        await apart(_break, site, ORDERS, "WARNING")
        # Either of the others would be listed as an incident too.
        assert await changed_kinds(stream) == ["signal"]

    following(site, talk, query=f"dataset_urn={quote(ORDERS.removesuffix(':v1'))}")
    site.clock.advance(600)
    done(site.put(f"{of(ORDERS)}/signals/FRESHNESS", site.value("OK")), 200)
    site.clock.advance(600)
    _break(site, PAYMENTS, "OK")
    site.clock.advance(600)
    following(site, talk, key=key)


def test_changes__server_stops__the_stream_ends(site: Site) -> None:
    async def talk(stream: Stream, _apart: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        site.is_stopping = True
        assert await stream.event() is None

    following(site, talk)


# Words and strips.


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (4000, "1 h 6 min"), (90_000, "1 d 1 h"), (1e6, "11 d")],
)
def test_span__of_seconds__is_reported_in_two_units_at_most(seconds: float, said: str) -> None:
    assert labels.span(seconds) == said


def test_command__with_words_that_a_shell_would_read__quotes_them() -> None:
    assert labels.command("dataset", "ls", "--search", "a; rm -rf $HOME") == (
        "headgate dataset ls --search 'a; rm -rf $HOME'"
    )


def _snapshot(state: str, minute: int, previous: str | None = None, *, late: bool = False) -> dict[str, Any]:
    at = f"2026-01-15T{minute // 60:02d}:{minute % 60:02d}:00.000Z"
    return {"state": state, "previous_state": previous, "changed_at": at, "late": late}


NOW_MS: Final = 1_768_521_600_000  # 2026-01-16T00:00:00Z


def test_strip__transitions__cover_the_time_from_the_first_to_now_without_gaps() -> None:
    snapshots = [
        _snapshot("WARNING", 600, "OK"),
        _snapshot("UNKNOWN", 700, "OK", late=True),
        _snapshot("CRITICAL", 720, "WARNING"),
    ]
    drawn = strip(snapshots, {"state": "CRITICAL", "detected_at": "2026-01-15T12:00:00.000Z"}, NOW_MS)

    assert [each.state for each in drawn.bars] == ["OK", "WARNING", "CRITICAL"]
    assert [each.height for each in drawn.bars] == [6, 16, HEIGHT]
    assert drawn.bars[0].x == 0
    assert sum(each.width for each in drawn.bars) == pytest.approx(WIDTH, abs=0.1)
    assert "CRITICAL since 2026-01-15 12:00" in drawn.text


def test_strip__no_transition_in_its_time__is_the_state_as_it_stands() -> None:
    drawn = strip([], {"state": "OK", "detected_at": None, "state_changed_at": "2025-06-01T00:00:00.000Z"}, NOW_MS)

    assert [(each.state, each.x, each.width) for each in drawn.bars] == [("OK", 0, WIDTH)]
    assert drawn.days == DAYS


def test_strip__a_breach_of_a_minute__is_wide_enough_to_be_seen_and_inside() -> None:
    at = "2026-01-15T23:59:00.000Z"
    drawn = strip([_snapshot("CRITICAL", 1439, "OK")], {"state": "CRITICAL", "state_changed_at": at}, NOW_MS)

    assert drawn.bars[-1].width == 3
    assert drawn.bars[-1].x + drawn.bars[-1].width <= WIDTH


def test_dataset__blocked__is_charted_drawn_and_can_be_overridden(site: Site) -> None:
    site.trouble()
    spec = site.spec(reads=[ORDERS], writes=[PAYMENTS])
    done(site.put(f"/lineage/specs/{quote(spec['spec_id'], safe='')}", spec), 200)
    site.clock.advance(5)
    page = site.dataset_page()
    charts = [
        msgspec.json.decode(str(each["data-chart"])) for tag, each in Document.read(page).tags if tag == "hg-chart"
    ]

    assert [each["series"][0]["name"] for each in charts] == ["FRESHNESS"]
    assert len(charts[0]["series"][0]["points"]) > 1
    assert len(charts[0]["marks"]) == 1
    assert [ORDERS, "job:job:orders-etl"] in graph_of(page)["edges"]
    override = actions_of(page)["Override the gate"]
    done(site.post(ORIGIN + override["path"], {"duration": "2h", "verb": "read", "reason": "known and harmless"}), 201)
    overridden = site.dataset_page()
    assert "known and harmless" in text_of(overridden)
    assert "Override the gate" not in actions_of(overridden)
    assert site.delete(ORIGIN + actions_of(overridden)["Revoke"]["path"]).status_code == 204
    reset = actions_of(site.dataset_page())["Reset signals"]
    done(site.post(ORIGIN + reset["path"], {"reason": "false alarm"}), 200)
    assert "No signals yet" in text_of(site.dataset_page())
