"""An error in workflow code ends many executions; the code is fixed, and one command lets them all go on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

from tests.acceptance.program import Server, run, until

# More than one batch of the command.
COUNT: Final = 120
EFFECTS: Final = 9
APP: Final = """
from pathlib import Path

import headgate as hg

app = hg.App("shop")


@app.activity
def effect(order: str, number: int) -> int:
    with Path("effects.txt").open("a") as file:
        file.write(f"{order} {number}\\n")
    return number


@app.workflow
async def fulfil(order: str) -> int:
    total = 0
    for number in range(9):
        total += await effect(order, number)
    return total + "1"


@app.on_event("orders")
def start(event: hg.Event) -> None:
    for number in range(event.data):
        fulfil.start(f"o{number}", id=f"o{number}")
"""
FIXED: Final = APP.replace('total + "1"', "total + 1")


def effects(folder: Path) -> Counter[str]:
    return Counter((folder / "effects.txt").read_text().splitlines())


def counts(server: Server, status: str) -> int:
    return len(server.get(f"/executions?workflow=fulfil&status={status}&limit=1000")["executions"])


def test_story__type_error_after_nine_effects__all_go_on_and_no_effect_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with Server(tmp_path, "--app", "shop:app") as server:
        run("event", "emit", "orders", "--data", str(COUNT), folder=tmp_path)
        until(lambda: counts(server, "FAILED") == COUNT, "every execution to fail", 60)
        shown = run("execution", "show", "o7", folder=tmp_path).stdout
        assert "TypeError: unsupported operand" in shown
    (tmp_path / "shop.py").write_text(FIXED)
    command = ["execution", "retry", "--from-failure", "--workflow", "fulfil", "--status", "FAILED"]
    with Server(tmp_path, "--app", "shop:app") as server:
        dry = run(*command, "--error", "typeerror", "--dry-run", folder=tmp_path)
        assert dry.stdout.splitlines()[0] == f"{COUNT} match"
        assert "fulfil  FAILED  TypeError: unsupported operand" in dry.stdout.splitlines()[1]
        assert run(*command, "--error", "KeyError", "--dry-run", folder=tmp_path).stdout == "0 match\n"
        assert run(*command, "--until", "1h", "--dry-run", folder=tmp_path).stdout == "0 match\n"
        assert counts(server, "FAILED") == COUNT

        done = run(*command, "--error", "TypeError", "--ended-since", "1h", "--reason", "fixed", folder=tmp_path)

        assert (done.returncode, done.stdout) == (0, f"retry-from-failure: {COUNT} of {COUNT}\n"), done.stderr
        assert "retry-from-failure: 100 of 100 so far" in done.stderr
        until(lambda: counts(server, "SUCCEEDED") == COUNT, "every execution to succeed", 60)
        assert run("execution", "result", "o7", folder=tmp_path).stdout == "37\n"
        again = run("execution", "retry", "o7", "--from-failure", folder=tmp_path)
        assert again.returncode == 3
        assert "it is SUCCEEDED and has not failed" in again.stderr
        entries = json.loads(run("audit", "ls", "--json", "--limit", "500", folder=tmp_path).stdout)
        resumed = {each["entity"]: each["reason"] for each in entries if each["action"].endswith("retry-from-failure")}
        assert resumed == {f"execution/o{number}": "fixed" for number in range(COUNT)}
    seen = effects(tmp_path)
    assert len(seen) == COUNT * EFFECTS
    assert set(seen.values()) == {1}, "an effect was repeated"


def test_reset__to_an_activity__from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FIXED)
    with Server(tmp_path, "--app", "shop:app") as server:
        run("execution", "start", "fulfil", "--input", '"o"', "--id", "o", folder=tmp_path)
        until(lambda: counts(server, "SUCCEEDED") == 1, "the execution to succeed", 30)
        unknown = run("execution", "reset", "o", "--to", "charge", folder=tmp_path)
        assert unknown.returncode == 4
        assert "no activity 'charge'; it has effect" in unknown.stderr

        done = run("execution", "reset", "o", "--to", "effect#8", "--reason", "wrong price", folder=tmp_path)

        assert done.stdout == "o: continues with turn 9, as run 2\n", done.stderr
        assert run("execution", "result", "o", "--wait", "20s", folder=tmp_path).stdout == "37\n"
        shown = run("execution", "show", "o", folder=tmp_path).stdout
        assert "1-8" in shown
        history = run("execution", "history", "o", folder=tmp_path).stdout
        assert "wrong price" in history
        replayed = run("execution", "replay", "o", "--app", "shop:app", folder=tmp_path)
        assert replayed.returncode == 0, replayed.stderr
        assert (effects(tmp_path)["o 7"], effects(tmp_path)["o 6"]) == (2, 1)
        none = run("execution", "reset", "--to", "1", folder=tmp_path)
        assert "give an execution id or a filter" in none.stderr
        one = run("execution", "retry", "o", "--request-id", "r-1", folder=tmp_path)
        assert one.returncode == 2
        assert "--request-id are for many executions" in one.stderr
        not_its_own = run("execution", "bulk", "cancel", "--workflow", "fulfil", "--to", "effect", folder=tmp_path)
        assert not_its_own.returncode == 2
        assert "to: only for the action reset" in not_its_own.stderr
        assert "continues" not in not_its_own.stderr
        run("execution", "retry", "o", "--reason", "from the start", folder=tmp_path)
        (entry,) = json.loads(run("audit", "ls", "--json", "--limit", "1", folder=tmp_path).stdout)
        assert (entry["action"], entry["reason"]) == ("execution.retry", "from the start")
