"""The story of the demo: a healthy shop, a bad deployment, and the way back.

Each chapter does something and then waits for a fact that the server states. How far the story is, and which periods it
is about, is stored before a chapter acts, and every act can be repeated: a story that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.demo.shop import CHAIN, RAW, SCORED, Shop
from headgate.errors import FatalError

APPROVAL: Final = "publish-prices"
_PAUSE_SECONDS: Final = 0.4
_WAIT_SECONDS_MAX: Final = 180.0
_STATE: Final = "story.json"


class Progress(Struct):
    """What is stored of the story: the chapters that are over, and the periods it is about."""

    chapters: list[str] = []
    periods: dict[str, str] = {}


class Chapter(Struct, frozen=True):
    """A chapter: the text that is printed before it, what it does, and the page that shows it."""

    name: str
    text: str
    act: Callable[[], None]
    # The page to open, below the server's URL.
    page: str = ""


class Story:
    """Tells the story, chapter by chapter. `say` prints a line; `pause` waits between chapters, if people watch."""

    def __init__(
        self, shop: Shop, home: Path, *, say: Callable[[str], None], pause: Callable[[], None], approves: bool
    ) -> None:
        self._shop = shop
        self._api = shop.api
        self._clock = shop.clock
        self._file = home / _STATE
        self._say = say
        self._pause = pause
        self._approves = approves
        self._progress = self._load()

    @property
    def is_over(self) -> bool:
        """Whether every chapter is over."""
        return len(self._progress.chapters) == len(self.chapters())

    def tell(self) -> None:
        """Tell what is left of the story. Raises `FatalError` if a fact does not come true."""
        for chapter in self.chapters():
            if chapter.name in self._progress.chapters:
                continue
            self._say(f"{len(self._progress.chapters) + 1}. {chapter.text}")
            chapter.act()
            self._progress.chapters.append(chapter.name)
            self._store()
            if chapter.page:
                self._say(f"   see {self._api.url}{chapter.page}")
            self._pause()

    def chapters(self) -> tuple[Chapter, ...]:
        """Return the chapters in order."""
        return (
            Chapter("healthy", "Orders arrive. Four pipelines run one after the other, 2,000 chunks among them.",
                    self._healthy, "/ui/pipelines"),
            Chapter("approval", "A change of prices waits for the approval of a person.",
                    self._approval, f"/ui/executions/{APPROVAL}"),
            Chapter("deploy", "shop-api v42 is deployed. It drops the field 'amount', and nothing notices yet.",
                    self._bad_deploy, "/ui/fanouts"),
            Chapter("incident", "Validation finds it: evidence, a critical signal, an incident with its blast radius.",
                    self._incident, "/ui"),
            Chapter("held", "Everything downstream is held, and says by what.", self._held, "/ui/pipelines"),
            Chapter("alert", "The incident and the failed run are alerts.", self._alerted, "/ui/incidents"),
            Chapter("silence", "The bank has sent no exchange rates. Nothing failed; the watchdog notices.",
                    self._silence, "/ui/pipelines"),
            Chapter("fix", "shop-api v43 is deployed, and the orders are exported again.", self._fix),
            Chapter("redrive", "The failed chunks are redriven. The run completes, and what was held is released.",
                    self._redrive, "/ui/pipelines"),
            Chapter("resolved", "The incident is resolved. Every dataset is healthy again.",
                    self._resolved, "/ui/incidents?status=RESOLVED"),
        )  # fmt: skip

    def traffic(self) -> None:
        """Send the orders and rates of the latest period, once."""
        period = self._shop.period()
        if self._progress.periods.get("latest") == period:
            return
        self._keep("latest", period)
        self._shop.export(period)
        self._shop.send_rates(period)
        self._shop.validate(period, version="v43")

    # Chapters.

    def _healthy(self) -> None:
        self._shop.register()
        good = self._period("good", back=1)
        self._shop.validate(good)
        self._shop.export(good)
        self._shop.send_rates(good)
        self._await_completed(CHAIN, good)

    def _approval(self) -> None:
        change = {"name": "autumn sale"}
        self._api.create("/executions", {"workflow": "publish_prices", "id": APPROVAL, "input": change})
        self._await("the approval is waited for", lambda: self._execution()["status"] != "RUNNING" or self._waits())
        if self._approves and self._execution()["status"] == "RUNNING":
            self._api.create(
                f"/executions/{APPROVAL}/signals", {"name": "approved", "payload": True, "id": "approved-by-demo"}
            )
            self._await("the prices are published", lambda: self._execution()["status"] == "SUCCEEDED")

    def _bad_deploy(self) -> None:
        bad = self._period("bad")
        self._shop.export(bad, is_broken=True)
        self._await("the orders are loaded", lambda: self._status("orders-load", bad) == "COMPLETED")
        # After it was redriven, in an earlier run of this chapter, it is no longer failed.
        self._await("the scores fail", lambda: self._status("orders-score", bad) in ("FAILED", "COMPLETED"))

    def _incident(self) -> None:
        self._shop.validate(self._progress.periods["bad"], is_broken=True, version="v42")
        self._await("an incident is open", lambda: self._incidents(RAW))
        (incident,) = self._incidents(RAW)[:1]
        context = self._api.get(f"/incidents/{incident['incident_id']}/context")
        reached = {each["dataset_urn"] for each in (context["blast_radius"] or {}).get("datasets", [])}
        self._check(SCORED in reached, f"incident {incident['incident_id']}: its blast radius lacks {SCORED}")

    def _held(self) -> None:
        bad = self._progress.periods["bad"]
        self._await("the report waits", lambda: self._status("revenue-report", bad) == "PENDING")
        gate = self._api.post("/gate", {"datasets": [SCORED], "verb": "read"})
        self._check(gate["decision"].upper() == "BLOCK", f"the gate of {SCORED} says {gate['decision']}")

    def _alerted(self) -> None:
        self._await("alerts exist", lambda: self._api.get("/alerts")["alerts"])

    def _silence(self) -> None:
        # A period that ends from now on: of one that was due before the pipeline existed nothing is expected.
        silent = self._period("silent", back=-1)

        def is_missed() -> bool:
            found = self._api.get("/expectations", pipeline="fx-rates")["expectations"]
            return any(each["verdict"] == "MISSED" and each["date"] == silent for each in found)

        self._await(f"the watchdog reports that the rates of {silent} are missing", is_missed)

    def _fix(self) -> None:
        bad = self._progress.periods["bad"]
        self._shop.export(bad)
        self._shop.validate(bad, version="v43")
        self._await("the orders are healthy", lambda: self._state(RAW, "CONTRACT_COMPLIANCE") == "OK")

    def _redrive(self) -> None:
        bad = self._progress.periods["bad"]
        run = self._run("orders-score", bad)
        body = {"failed": True, "by": "demo", "reason": "shop-api v43 has the field again"}
        if self._api.get(f"/fanouts/{run['job_id']}")["status"] != "SUCCEEDED":
            self._api.post(f"/fanouts/{run['job_id']}/redrive", body)
        self._await_completed(CHAIN[1:], bad)

    def _resolved(self) -> None:
        for urn in (RAW, SCORED):
            for incident in self._incidents(urn):
                patch = {"status": "RESOLVED", "rca_summary": "shop-api v42 dropped the field amount; v43 has it again"}
                self._api.patch(f"/incidents/{incident['incident_id']}", patch)
        gate = self._api.post("/gate", {"datasets": [SCORED], "verb": "read"})
        self._check(
            gate["decision"].upper() in ("ALLOW", "WARN"), f"the gate of {SCORED} still says {gate['decision']}"
        )
        self._check(not self._incidents(RAW), "the incident is still open")

    # Facts.

    def _status(self, pipeline: str, period: str) -> str:
        run = self._run(pipeline, period)
        return "" if run is None else str(run["status"])

    def _run(self, pipeline: str, period: str) -> Any:  # noqa: ANN401 - JSON of the API
        found = self._api.get(f"/pipelines/{pipeline}/runs", limit=100) or {"runs": []}
        return next((each for each in found["runs"] if each["date"] == period), None)

    def _execution(self) -> Any:  # noqa: ANN401 - JSON of the API
        return self._api.get(f"/executions/{APPROVAL}")

    def _waits(self) -> bool:
        return any(each["kind"] == "signal" for each in self._execution().get("waits_for", []))

    def _state(self, urn: str, signal: str) -> str:
        found = self._api.get(f"/datasets/{urn}/signals/{signal}")
        return "" if found is None else str(found["state"])

    def _incidents(self, urn: str) -> list[Any]:
        found = self._api.get("/incidents", dataset_urn=urn, status=["OPEN", "ACKNOWLEDGED"])
        return [] if found is None else list(found["items"])

    def _await_completed(self, pipelines: Sequence[str], period: str) -> None:
        for pipeline in pipelines:
            is_done = partial(self._is_completed, pipeline, period)
            self._await(f"{pipeline} of {period} completes", is_done)

    def _is_completed(self, pipeline: str, period: str) -> bool:
        return self._status(pipeline, period) == "COMPLETED"

    def _await(self, what: str, is_true: Callable[[], object]) -> None:
        ends_at = self._clock.monotonic() + _WAIT_SECONDS_MAX
        while not is_true():
            if self._clock.monotonic() > ends_at:
                raise FatalError(f"demo: {what}: not after {_WAIT_SECONDS_MAX:g} s; {self._api.url}/ui shows why")
            self._clock.sleep(_PAUSE_SECONDS)

    @staticmethod
    def _check(is_true: bool, what: str) -> None:  # noqa: FBT001 - an assertion
        if not is_true:
            raise FatalError(f"demo: {what}")

    # State.

    def _period(self, name: str, *, back: int = 0) -> str:
        """Return the period of a chapter, which is chosen once."""
        if name not in self._progress.periods:
            self._keep(name, self._shop.period(back))
        return self._progress.periods[name]

    def _keep(self, name: str, period: str) -> None:
        self._progress.periods[name] = period
        self._store()

    def _load(self) -> Progress:
        try:
            return typed_decode.from_json(self._file.read_bytes(), Progress)
        except FileNotFoundError:
            return Progress()

    def _store(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self._progress))
        draft.replace(self._file)
