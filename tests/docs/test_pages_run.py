"""How-to pages whose commands need a project: each command of a page runs on one, in the order of the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
import typer

from tests.docs.shown_project import DAY, HOW_TO, Project, running_project
from tests.docs.test_commands_shown import END, ROOT, root_command, shown_in
from tests.docs.test_commands_shown import PAGES as ALL_PAGES

# What the parser raises, whose package typer keeps to itself.
_UsageError: Final[Any] = typer.BadParameter.__base__
# Elsewhere, with the reason.
NOT_RUN: Final = {
    "up --reload": "tests/acceptance/test_app_reload.py runs it",
    "up --watch": "tests/acceptance/test_project_paths.py reloads folders",
    "up --home restored": "tests/acceptance/test_backup_restore.py starts a restored home",
    "up": "tests/acceptance/test_sign_in_browser.py starts it with authentication; the project's server runs it here",
    "aws doctor": "tests/contract/test_deployment_doctor.py runs it on an emulator",
    "region": "tests/integration/cli/health/test_region.py, and `python -m tests.soak regions` types them",
    "worker --app": "the worker of the project is started with this line",
}


class Page(NamedTuple):
    """A page: what its names are called in the project (empty: it is named only), and the exit codes that are no 0."""

    names: dict[str, str] = {}
    exits: dict[str, int] = {}
    # Done before a command that begins so.
    before: dict[str, Callable[[Project], object]] = {}


def _closed(project: Project) -> None:
    project.until_closed("order-7")


# Commands that sentences of other pages name, with all their arguments; and the test that runs them.
INLINE_ELSEWHERE: Final = {
    "up": "tests/acceptance/test_up.py",
    "demo": "tests/acceptance/test_demo.py",
    "watchdog": "tests/acceptance/test_watchdog_processes.py",
    "chunk work": "tests/acceptance/test_chunk_worker.py",
    "upgrade": "tests/acceptance/test_backup_restore.py",
    "table create": "tests/acceptance/test_up_aws.py",
    "table check": "tests/acceptance/test_up_aws.py",
    "region": "tests/integration/cli/health/test_region.py",
    "aws doctor": "tests/contract/test_deployment_doctor.py",
    "aws redrive": "tests/contract/test_deployment_redrive.py",
    "execution result ID --app vault:app": "tests/acceptance/test_encrypted_payloads.py",
    "fanout drain": "tests/contract/test_fanout_drain.py",
    "fanout doctor --queue-url": "tests/acceptance/test_fanout_queue.py",
    **dict.fromkeys(
        (
            "fanout bisect monday",
            "fanout items monday",
            "fanout plot monday",
            "fanout redrive monday",
            "fanout redrive ID --all",
            "fanout stuck",
            "fanout tune",
        ),
        "tests/acceptance/test_fanout_pages.py",
    ),
}
# As they are typed here, where they need an argument that the sentence leaves out.
INLINE_AS: Final = {
    "alert test chat": "alert test console",
    "api-key first": "api-key first --home another",
    "api-key issue NAME --role ROLE --scope PATTERN --expires-in DURATION": (
        "api-key issue ada --role viewer --scope 'urn:dp:shop:*' --expires-in 1h"
    ),
    "asl graph check-partitions --execution check-partitions:tuesday -o how.svg": (
        "asl graph invoices --execution invoices:tuesday -o how.svg"
    ),
    "asl validate --all DIR --target aws": "asl validate --all . --target aws",
    "asl validate --target aws": "asl validate invoices.asl.json --target aws",
    "audit verify --anchors FILE": "audit verify --anchors anchors.json",
    "dataset schema": "dataset schema dataset-registry-schema.json",
    "event tail": "event tail --after evt_00000000000000000000000000 --limit 1",
    "execution history ID --json": "execution history order-7 --json",
    "execution replay": "execution replay order-7 --app shop:app",
    "execution replay ID --app claims:app": "execution replay order-7 --app shop:app",
    'execution reset check-partitions:tuesday --to ListPartitions --reason "the table was wrong"': (
        "execution reset invoices:tuesday --to Charge --reason 'the table was wrong'"
    ),
    "execution retry --from-failure": "execution retry order-7 --from-failure",
    "execution retry RUN --from-failure": "execution retry order-7 --from-failure",
    "fanout redrive RUN --failed": "fanout redrive monday --failed",
    "init": "init scratch",
    "open": "open --print",
    "period why dbt-shop --date DATE": f"period why nightly --date {DAY}",
    "pipeline versions shop-daily": "pipeline versions nightly",
    "pipeline validate FOLDER": "pipeline validate pipelines",
    "vacuum": "vacuum --home .headgate",
}
INLINE_NAMES: Final = {
    r"\bURN\b": "urn:dp:shop:bills",
    r"\bPIPELINE\b": "nightly",
    r"\bDATE\b": DAY,
    r"\bPOOL\b": "spark",
    r"\bRUN\b": "RUN_ID",
    r"^(fanout .*)\bID\b": r"\1monday",
    r"^(execution .*)\bID\b": r"\1order-7",
    r"^worker show ID$": "worker show WORKER_ID",
    r"\b(CHUNK|chunk-0+600)\b": "chunk-0000000",
    r"\bTEXT\b": "tried",
}
INLINE_EXITS: Final = {
    # It is failed, not stuck.
    "execution redrive ID": 3,
    # Its last report is old.
    "gate check URN": 10,
    # It has ended.
    "pool free POOL RUN --reason TEXT": 4,
}
PAGES: Final = {
    "back-up-and-restore.md": Page(
        names={
            r"/backups/headgate-\d+T\d+Z\.tar": "BACKUP",
            r"/backups ": "backups ",
            r"^(upgrade.*|audit verify|key rotate)$": r"\1 --home restored",
        }
    ),
    # One of the checks fails on the only row.
    "check-data.md": Page(exits={"check try checks": 1}),
    "connect-dbt-and-openlineage.md": Page(
        names={
            r"merge URN INTO": "merge urn:dp:shop:bills-of-dbt urn:dp:shop:bills",
            r"\bURN\b": "urn:dp:shop:bills",
            r"\bJOB\b": "JOB_ID",
            "target/": "target --namespace postgres://shop",
        }
    ),
    "dashboards.md": Page(),
    "deploy-new-code.md": Page(
        names={r"\bID\b": "order-7", r"\bBUILD\b": "2026.11.1"},
        before={
            "execution redrive": _closed,
            "deploy ramp": lambda project: project.printed("deploy set-current 2026.11.1 --reason 'back'"),
            "deploy drain": lambda project: project.printed("deploy set-current --any --app shop"),
        },
        # It is not stuck.
        exits={"execution redrive": 3},
    ),
    "operate-on-aws.md": Page(
        names={
            "docs/estimates/NAME": f"{ROOT}/docs/estimates/step-prices",
            "^dataset register$": "dataset register urn:dp:shop:priced",
        }
    ),
    "observe-executions.md": Page(names={r"\bID\b": "order-7"}),
    # One row is not enough.
    "probe-data.md": Page(exits={"probe try": 1}),
    "repair-executions.md": Page(
        names={"--to 12 ": "--to 1 ", "bulk ACTION": "bulk redrive --workflow fulfil --dry-run"},
        before={"execution retry": _closed, "execution reset order-7": _closed},
    ),
    # It is done: there is nothing to cancel.
    "run-commands.md": Page(names={r"\bRUN\b": "RUN_ID"}, exits={"run cancel": 3}),
    "sign-in.md": Page(
        names={"api-key first": "api-key first --home other", "end ID": "end none"}, exits={"session end": 4}
    ),
    "use-the-command-line.md": Page(
        names={
            "orders-daily": "nightly",
            "^open ID$": "open nightly --print",
            # There is no fan-out; tests/acceptance/test_fanout_pages.py opens the page of a chunk.
            "^open FANOUT CHUNK$": "",
            "^open PIPELINE DATE$": f"open nightly {DAY} --print",
            "^fanout watch$": "",
        },
        exits={"run show run_none": 4},
    ),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with running_project(tmp_path_factory.mktemp("shop") / "shop") as running:
        yield running


def _is_whole(line: str) -> bool:
    """Whether a command has all its arguments; others are named and not shown."""
    command, words = root_command(), shlex.split(line)
    while words and getattr(command, "commands", None):
        if words[0] not in command.commands:
            return False
        command, words = command.commands[words[0]], words[1:]
    if getattr(command, "commands", None):
        return False
    try:
        command.make_context(command.name, words, resilient_parsing=False)
    except _UsageError as exc:
        # What is not understood fails when it runs.
        missing = re.match(r"Missing|Option '.*' requires", str(exc.format_message()))
        return missing is None
    return True


def _in_project(line: str, page: Page, project: Project) -> str:
    for name, own in page.names.items():
        line = re.sub(name, own, line)
    for word, value in (("RUN_ID", project.run_id), ("JOB_ID", project.job_id), ("WORKER_ID", project.worker_id)):
        line = line.replace(word, value()) if word in line else line
    backups = sorted((project.folder / "backups").glob("*.tar"))
    return line.replace("BACKUP", str(backups[0])) if backups else line


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PAGES)
def test_page__each_command__ends_as_the_page_says(project: Project, name: str) -> None:
    page, done = PAGES[name], 0
    for shown in shown_in(HOW_TO / name):
        line = _in_project(END.split(shown, maxsplit=1)[0].strip(), page, project)
        if not _is_whole(line) or any(line == each or line.startswith(f"{each} ") for each in NOT_RUN):
            continue
        for beginning, act in page.before.items():
            if line.startswith(beginning):
                act(project)
        exit_code = next((code for beginning, code in page.exits.items() if line.startswith(beginning)), 0)
        project.printed(line, exit_code)
        done += 1

    assert done


def _inline(page: Path) -> list[str]:
    """Return the commands that the sentences of a page name, with all their arguments."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = [END.split(line, maxsplit=1)[0].strip() for line in re.findall(r"`headgate ([a-z][^`]*)`", prose)]
    return [line for line in named if _is_whole(line)]


def _elsewhere(line: str) -> bool:
    return any(line == each or line.startswith(f"{each} ") for each in INLINE_ELSEWHERE)


INLINE: Final = sorted({line for page in ALL_PAGES if page.name not in PAGES for line in _inline(page)})


def test_inline_commands__of_all_other_pages__end_as_they_should(project: Project) -> None:
    _closed(project)
    (project.folder / "anchors.json").write_text(project.printed("audit heads --json"))
    left = set(INLINE_EXITS)
    for shown in INLINE:
        if _elsewhere(shown):
            continue
        left.discard(shown)
        if shown.startswith("execution retry"):
            # The retry before may still run.
            _closed(project)
        line = _in_project(INLINE_AS.get(shown, shown), Page(names=INLINE_NAMES), project)
        project.printed(line, INLINE_EXITS.get(shown, 0))

    assert left == set()


def test_inline_commands__that_another_test_runs__are_shown_and_name_it() -> None:
    assert [
        each for each in INLINE_ELSEWHERE if not any(line == each or line.startswith(f"{each} ") for line in INLINE)
    ] == []
    assert [path for path in INLINE_ELSEWHERE.values() if not (ROOT / path).exists()] == []
    assert [each for each in INLINE_AS if each not in INLINE] == []


def test_lines__that_are_not_run_here__are_shown_and_name_a_test_that_exists() -> None:
    shown = [line for name in PAGES for line in shown_in(HOW_TO / name)]

    assert [each for each in NOT_RUN if not any(line.startswith(each) for line in shown)] == []
    named = [path for reason in NOT_RUN.values() for path in re.findall(r"tests/[\w/]+\.py", reason)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_worker__with_metrics__is_scraped_as_the_page_shows(project: Project) -> None:
    assert "\ncurl -s 127.0.0.1:9400/metrics\n" in (HOW_TO / "observe-executions.md").read_text()
    assert "headgate_worker_slots" in httpx.get(f"http://{project.metrics}/metrics", timeout=20).text
