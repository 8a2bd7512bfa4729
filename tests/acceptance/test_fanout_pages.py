"""The commands of the pages about fan-outs that are not part of a walk-through, typed as they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from typer.testing import CliRunner

from headgate.cli.main import load
from headgate.cli.session import Session
from tests.acceptance.page_commands import commands_of, options_of
from tests.acceptance.program import Server, until

HOW_TO: Final = Path(__file__).parents[2] / "docs/how-to"
COMMANDS: Final = HOW_TO.parent / "reference/commands.md"
RUN_PAGE: Final = HOW_TO / "run-a-fan-out.md"
HANDLERS: Final = """
import json, os, time


def one(line):
    return json.loads(line)["celsius"]


def odd(items):
    if items[0] < 4:
        raise ValueError("odd")
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.01)
"""


class Shop:
    """A server in a project with the handler and the input of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        code = re.search(r"^```python\n(# readings\.py\n.*?)^```", RUN_PAGE.read_text(), re.MULTILINE | re.DOTALL)
        assert code is not None
        (folder / "readings.py").write_text(code[1])
        (folder / "mine.py").write_text(HANDLERS)
        rows = [{"sensor": number, "fahrenheit" if number == 640 else "celsius": 20} for number in range(1000)]
        (folder / "readings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.server = Server(folder, HEADGATE_FANOUT_MANIFESTS="manifests")

    def printed(self, *arguments: str) -> str:
        """Return what a command prints. It runs in this process, which has loaded the program already."""
        session = Session({"HEADGATE_SERVER": self.server.url, "HEADGATE_HOME": str(self.server.home)})
        ended = CliRunner().invoke(load(arguments), list(arguments), obj=session, catch_exceptions=False)
        assert ended.exit_code == 0, (arguments, ended.output)
        return ended.stdout

    def wait(self, run_id: str) -> None:
        def has_ended() -> bool:
            return bool(httpx.get(f"{self.server.url}/api/v1/fanouts/{run_id}", timeout=20).json()["is_finished"])

        until(has_ended, f"the end of {run_id}")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    made = Shop(tmp_path)
    with made.server:
        yield made


def test_run_page__every_command_and_option__does_what_the_page_says(shop: Shop) -> None:
    lines = ["--lines", "readings.jsonl", "--chunk-size", "50"]
    shop.printed("fanout", "submit", "--handler", "readings:clean", *lines, "--run-id", "monday", "--max-attempts", "1")
    shop.printed("fanout", "submit", "--handler", "mine:one", *lines, "--run-id", "tuesday", "--each")
    limits = ["--max-attempts", "1", "--tolerated-failures", "1", "--on-failures", "pause", "--concurrency", "1"]
    numbers = ["--handler", "mine:odd", "--range", "0..40", "--chunk-size", "1"]
    shop.printed("fanout", "submit", *numbers, "--run-id", "wednesday", *limits)
    shop.wait("monday")
    shop.wait("tuesday")
    until(lambda: json.loads(shop.printed("fanout", "show", "wednesday", "--json"))["paused_at"], "the pause")
    left = commands_of(RUN_PAGE)

    def typed(command: str, *more: str, given: str = "monday", says: str = "") -> None:
        """Type a command of the page, for the fan-out `given` in the place of the one that it names."""
        left.remove(command)
        words = [given if word in ("monday", "ID") else word for word in command.split()[1:]]
        assert re.search(says, shop.printed(*words, *more)), command

    typed("headgate fanout stuck monday", says="nothing is stuck|no stuck|none")
    typed("headgate fanout plot monday chunks -o chunks.svg", says="chunks.svg")
    for name in ("progress", "durations", "attempts", "workers"):
        assert f"`{name}`" in RUN_PAGE.read_text()
        shop.printed("fanout", "plot", "monday", name, "-o", f"{name}.svg")
        assert (shop.folder / f"{name}.svg").read_text().startswith("<svg")
    attempt = r"(?m)^1 +FAILED .*Z +\S+s +[1-9]\d* MB +KeyError: 'celsius'"
    typed("headgate chunk show monday chunk-000000000600", says=attempt)
    typed("headgate fanout bisect monday chunk-000000000600 --until-alone")
    shop.wait("monday")
    assert "1 " in shop.printed("fanout", "failures", "monday").splitlines()[1]
    chunk = "chunk-000000000600"
    assert shop.printed("open", "monday", chunk, "--print").endswith(f"/ui/fanouts/monday/chunks/{chunk}\n")
    typed("headgate fanout items monday", given="tuesday", says=r"640 .*KeyError: 'celsius'")
    for command in (
        "headgate fanout redrive monday --item 640",
        "headgate fanout redrive monday --error-class KeyError",
        "headgate fanout redrive monday --failed",
    ):
        typed(command, given="tuesday", says="tuesday: 1 ")
        shop.wait("tuesday")
    typed("headgate fanout tune ID --tolerated-failures 10", given="wednesday")
    typed("headgate fanout resume", "wednesday")
    (shop.folder / "go").touch()
    shop.wait("wednesday")
    typed("headgate fanout redrive ID --all", given="wednesday", says="wednesday: 4 chunks redriven")
    shop.wait("wednesday")
    typed("headgate chunk work --handler readings:clean --processes 8", "--until-idle", says="0 chunks completed")
    (shop.folder / "monday.json").write_text('{"group": "readings", "handler": "readings:clean", "range": [0, 0]}')
    typed("headgate fanout upload monday.json --to manifests --watch", given="monday.json", says="SUCCEEDED")
    typed("headgate fanout ls --group readings --latest", says="monday-")
    # The page about queues has it, with a queue.
    left.discard("headgate fanout drain URL")
    assert left == set()

    reference = COMMANDS.read_text()
    valued: dict[str, list[str]] = {}
    for option in options_of(RUN_PAGE):
        name, *value = option.split()
        assert f"`{name}" in reference, f"{option} of the page is an option of no command"
        if value and name != "--to":
            valued.setdefault(name, []).append(option)
    for number in range(max(map(len, valued.values()))):
        chosen = [word for options in valued.values() for word in options[number % len(options)].split()]
        shop.printed("fanout", "submit", *numbers, "--run-id", f"options-{number}", *chosen)
