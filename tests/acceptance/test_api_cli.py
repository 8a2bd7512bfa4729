"""The commands that talk to a server, as the installed program against a server that really runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from headgate.cli.connection import Connection
from tests.acceptance.program import PROGRAM, Server, run, until

APP: Final = '''
import headgate as hg

app = hg.App("shop")


@app.activity(retry=hg.Retry(attempts=1))
def charge(amount: int) -> str:
    if amount < 0:
        raise ValueError(f"cannot charge {amount}")
    return f"receipt-{amount}"


@app.workflow
async def pay(amount: int) -> str:
    """Charge once."""
    hg.log("paying")
    return await charge(amount)


@app.workflow
async def order(item: str) -> list:
    seen = []
    hg.on_query("seen", lambda: seen)
    hg.on_update("add", lambda value: seen.append(value) or len(seen))
    await hg.wait_signal("go")
    return [item, *seen]


@app.on_event("order.created", retry=hg.Retry(attempts=1))
def hear(event: hg.Event) -> None:
    raise ValueError("no ears")
'''


class Shop:
    """A running server with an app, and the program beside it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder, **environ)

    def json(self, *arguments: str) -> Any:
        ended = self.run(*arguments, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def said(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(APP)
    with Server(folder, "--app", "shop:app") as server:
        yield Shop(folder, server)


def ended_with(ended: subprocess.CompletedProcess[str], exit_code: int, code: str, *printed: str) -> None:
    assert (ended.returncode, f"code: {code}" in ended.stderr) == (exit_code, True), ended.stderr
    for words in printed:
        assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def eventually(found: Callable[[], Any], what: str) -> Any:
    """Return what `found` finds, as soon as it finds something."""
    seen: list[Any] = []

    def look() -> bool:
        seen[:] = [found()]
        return bool(seen[0])

    until(look, what, 20)
    return seen[0]


# Executions


def test_execution__started_and_waited_for__prints_its_result(shop: Shop) -> None:
    started = shop.said("execution", "start", "pay", "--input", "5", "--id", "pay/5", "--tag", "shop:a")

    assert started == "pay/5\n"
    assert shop.said("execution", "result", "pay/5", "--wait", "20s") == '"receipt-5"\n'
    assert "already exists" in shop.said("execution", "start", "pay", "--input", "5", "--id", "pay/5")
    shown = shop.said("execution", "show", "pay/5")
    assert "SUCCEEDED" in shown
    assert "shop:a" in shown
    assert "paying" in shop.said("execution", "logs", "pay/5")
    assert "start_activity" in shop.said("execution", "history", "pay/5")
    assert "pay/5" in shop.said("execution", "ls", "--workflow", "pay", "--tag", "shop:a")
    assert [each["id"] for each in shop.json("execution", "ls", "--tag", "shop:a")] == ["pay/5"]
    assert shop.said("execution", "ls", "--tag", "shop:nobody") == "no executions\n"


def test_execution__input_from_a_file_or_standard_input__is_taken(shop: Shop) -> None:
    (shop.folder / "input.json").write_text("6")
    shop.said("execution", "start", "pay", "--input", "@input.json", "--id", "file")
    subprocess.run(
        [PROGRAM, "execution", "start", "pay", "--input", "-", "--id", "stdin"],
        cwd=shop.folder,
        input=b"7",
        check=True,
        timeout=30,
        capture_output=True,
    )

    assert shop.said("execution", "result", "file", "--wait", "20s") == '"receipt-6"\n'
    assert shop.said("execution", "result", "stdin", "--wait", "20s") == '"receipt-7"\n'


def test_execution__failed__result_and_watch_exit_with_1(shop: Shop) -> None:
    shop.said("execution", "start", "pay", "--input", "-1", "--id", "bad")

    ended = shop.run("execution", "result", "bad", "--wait", "20s")
    watched = shop.run("execution", "watch", "bad")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "ended FAILED: ValueError: cannot charge -1" in ended.stderr
    assert (watched.returncode, "FAILED" in watched.stdout) == (1, True)


def test_execution__reported_things__answers(shop: Shop) -> None:
    shop.said("execution", "start", "order", "--input", '"book"', "--id", "o")
    eventually(lambda: shop.json("execution", "show", "o")["turn"], "its first turn")

    assert "waiting for signal go\n" in shop.said("execution", "show", "o")
    assert shop.said("execution", "update", "o", "add", "--input", '{"x": 1}') == "1\n"
    assert shop.said("execution", "query", "o", "seen") == '[{"x":1}]\n'
    ended_with(shop.run("execution", "result", "o"), 75, "transient", "RUNNING")
    ended_with(shop.run("execution", "query", "o", "nothing"), 4, "not_found", "['seen']")
    ended_with(shop.run("execution", "update", "o", "nothing"), 2, "update_rejected", "nothing")
    with subprocess.Popen(
        [PROGRAM, "execution", "watch", "o", "--json"], cwd=shop.folder, stdout=subprocess.PIPE
    ) as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        shop.said("execution", "signal", "o", "go")
        last = json.loads(watch.stdout.read().splitlines()[-1])
        assert watch.wait(20) == 0
    assert (first["status"], last["status"]) == ("RUNNING", "SUCCEEDED")
    assert shop.said("execution", "result", "o") == '["book",{"x":1}]\n'
    ended_with(shop.run("execution", "signal", "o", "go"), 3, "execution_closed")


def test_execution__ended_and_begun_again(shop: Shop) -> None:
    shop.said("execution", "start", "order", "--input", '"pen"', "--id", "e1")
    ended_with(shop.run("execution", "redrive", "e1"), 3, "conflict", "not stuck")
    shop.said("execution", "cancel", "e1", "--reason", "enough")
    eventually(lambda: shop.json("execution", "show", "e1")["status"] == "CANCELLED", "its end")

    shop.said("execution", "retry", "e1")
    eventually(lambda: shop.json("execution", "show", "e1")["run"] == 2, "its second run")
    assert "1 match" in shop.said(
        "execution", "bulk", "terminate", "--workflow", "order", "--status", "RUNNING", "--dry-run"
    )
    assert "terminate: 1 of 1" in shop.said("execution", "bulk", "terminate", "--workflow", "order")
    eventually(lambda: shop.json("execution", "show", "e1")["status"] == "TERMINATED", "its second end")
    ended_with(shop.run("execution", "bulk", "terminate"), 2, "user", "give an execution id or a filter")


def test_execution_replay__same_and_changed_code__is_ok_or_exits_with_70(shop: Shop) -> None:
    shop.said("execution", "start", "pay", "--input", "9", "--id", "pay/9")
    shop.said("execution", "result", "pay/9", "--wait", "20s")
    changed = APP.replace("return await charge(amount)", "await hg.sleep(1)\n    return await charge(amount)")
    (shop.folder / "changed.py").write_text(changed)
    (shop.folder / "other.py").write_text('import headgate as hg\napp = hg.App("other")\n')
    (shop.folder / "history.json").write_text(shop.run("execution", "history", "pay/9", "--json").stdout)

    assert shop.said("execution", "replay", "pay/9", "--app", "shop:app").startswith("OK: pay/9 (pay)")
    assert shop.json("execution", "replay", "--history", "history.json", "--app", "shop:app")["turns"] == 2
    for given in (["pay/9"], ["--history", "history.json"]):
        ended = shop.run("execution", "replay", *given, "--app", "changed:app")
        ended_with(ended, 70, "nondeterministic", "charge")
    ended_with(shop.run("execution", "replay", "pay/9", "--app", "other:app"), 4, "unknown_workflow")
    ended_with(shop.run("execution", "replay", "--app", "shop:app"), 2, "user")
    ended_with(shop.run("execution", "replay", "--history", "shop.py", "--app", "shop:app"), 2, "bad_payload")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (["start", "nothing"], 4, "unknown_workflow"),
        (["start", "pay", "--input", "x"], 2, "bad_payload"),
        (["start", "pay", "--input", '"x"'], 2, "bad_payload"),
        (["start", "pay", "--input", "@none.json"], 2, "user"),
        (["start", "pay", "--input", "1", "--id", "a b"], 2, "bad_id"),
        (["start", "pay", "--input", "1", "--tag", "a"], 2, "user"),
        (["start", "pay", "--input", "1", "--delay", "soon"], 2, "user"),
        (["show", "none"], 4, "not_found"),
        (["ls", "--status", "DONE"], 2, "bad_payload"),
        (["watch", "none"], 4, "not_found"),
        (["logs", "a#b"], 2, "bad_id"),
    ],
)
def test_execution__bad_input__exits_with_the_code(shop: Shop, arguments: list[str], exit_code: int, code: str) -> None:
    ended_with(shop.run("execution", *arguments), exit_code, code)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["execution", "start", "pay", "--input"], "--input"),
        (["execution", "start", "pay", "--input", "1", "--memo"], "--memo"),
        (["execution", "signal", "none", "go", "--payload"], "--payload"),
        (["execution", "update", "none", "add", "--input"], "--input"),
        (["event", "emit", "order.created", "--data"], "--data"),
        (["schedule", "create", "s", "--workflow", "pay", "--cron", "@hourly", "--input"], "--input"),
    ],
)
def test_payload__over_the_limit__is_reported_as_that_and_not_as_a_broken_connection(
    shop: Shop, arguments: list[str], option: str
) -> None:
    (shop.folder / "large.json").write_text(json.dumps("x" * 10_000_000))

    ended_with(shop.run(*arguments, "@large.json"), 2, "payload_too_large", option, "pass a reference")


def test_body__over_what_the_server_reads__is_answered_although_it_was_not_sent_to_its_end(shop: Shop) -> None:
    reply = Connection(shop.server.url).request("POST", "/events", query={}, content=b"x" * 30_000_000)

    assert (reply.status, json.loads(reply.content)["code"]) == (413, "content_too_large")


# Events


def test_event__emitted__is_listed_followed_and_its_dead_letters_redelivered(shop: Shop) -> None:
    identifier = shop.said("event", "emit", "order.created", "--data", '{"n": 1}', "--subject", "1").strip()

    dead = eventually(lambda: shop.json("event", "dead"), "the dead letter")
    assert (dead[0]["event_id"], dead[0]["error"]["message"]) == (identifier, "no ears")
    assert identifier in shop.said("event", "ls", "--type", "order.*")
    assert "no ears" in shop.said("event", "dead", "--subscription", "hear")
    assert "order.created" in shop.said("event", "subscriptions")
    assert "1 redelivered" in shop.said("event", "redeliver", "hear", identifier)
    eventually(lambda: shop.json("event", "dead"), "the dead letter again")
    assert "1 redelivered" in shop.said("event", "redeliver", "hear")
    replayed = shop.json(
        "event", "replay", "hear", "--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"
    )
    assert replayed == {"count": 1}
    followed = shop.json(
        "event", "tail", "--after", f"{identifier[:14]}{'0' * 16}", "--type", "order.*", "--limit", "1"
    )
    assert followed["id"] == identifier
    ended_with(shop.run("event", "emit", "a*b"), 2, "bad_payload")
    ended_with(shop.run("event", "redeliver", "nobody"), 4, "not_found")


def test_event__dead_letters__are_found_shown_redelivered_and_purged(shop: Shop) -> None:
    shop.run("event", "purge", "hear", "--all")
    ids = [shop.said("event", "emit", name, "--data", "1").strip() for name in ("order.created", "order.created")]
    eventually(lambda: len(shop.json("event", "dead")) == 2, "two dead letters")

    assert [each["event_id"] for each in shop.json("event", "dead", "--limit", "1")] == ids[:1]
    assert shop.json("event", "dead", "--type", "user.*") == []
    assert shop.json("event", "dead", "--older-than", "1h") == []
    assert len(shop.json("event", "dead", "--newer-than", "1h", "--type", "order.*")) == 2
    shown = shop.said("event", "dead-letter", "hear", ids[0])
    assert "no ears" in shown
    assert '"type":"order.created"' in shown
    assert shop.json("event", "dead-letter", "hear", ids[0])["event"]["data"] == 1

    assert shop.said("event", "redeliver", "hear", "--type", "order.*", "--dry-run") == "hear: 2 would be redelivered\n"
    assert shop.said("event", "purge", "hear", ids[0], "--dry-run") == "hear: 1 would be deleted\n"
    assert shop.json("event", "redeliver", "hear", "--older-than", "1h") == {"count": 0, "dry_run": False}
    assert shop.json("event", "purge", "hear", ids[0]) == {"count": 1, "dry_run": False}
    assert [each["event_id"] for each in shop.json("event", "dead")] == ids[1:]
    ended_with(shop.run("event", "purge", "hear"), 2, "user", "all")
    ended_with(shop.run("event", "purge", "hear", ids[0]), 4, "not_found")
    ended_with(shop.run("event", "purge", "nobody", "--all"), 4, "not_found")
    ended_with(shop.run("event", "dead-letter", "hear", ids[0]), 4, "not_found")
    ended_with(shop.run("event", "dead", "--older-than", "soon"), 2, "user")
    assert shop.said("event", "purge", "hear", "--all") == "hear: 1 deleted\n"
    assert shop.said("event", "dead") == "no dead letters\n"


def test_event__replay__is_listed_and_stopped(shop: Shop) -> None:
    shop.said("event", "emit", "order.created", "--data", "1")
    times = ["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"]
    shop.said("event", "replay", "hear", *times, "--id", "once")

    assert "DONE" in shop.said("event", "replays", "hear")
    assert shop.said("event", "stop-replay", "hear", "once").startswith("once: stopped")
    assert [each["status"] for each in shop.json("event", "replays", "hear") if each["id"] == "once"] == ["STOPPED"]
    assert shop.json("event", "stop-replay", "hear", "once")["dropped"] == 0
    ended_with(shop.run("event", "replay", "hear", *times, "--id", "once"), 3, "conflict", "stopped")
    ended_with(shop.run("event", "stop-replay", "hear", "other"), 4, "not_found")
    ended_with(shop.run("event", "replays", "nobody"), 4, "not_found")


def test_event__subscription__is_retired(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with Server(tmp_path, "--app", "shop:app") as server:
        shop = Shop(tmp_path, server)
        assert "active" in shop.said("event", "subscriptions")

        assert shop.said("event", "retire", "hear") == "hear: retired\n"

        assert "retired" in shop.said("event", "subscriptions")
        assert shop.json("event", "retire", "hear")["name"] == "hear"
        ended_with(shop.run("event", "retire", "nobody"), 4, "not_found")
        times = ["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"]
        ended_with(shop.run("event", "replay", "hear", *times), 3, "conflict", "retired")


# Schedules


def test_schedule__made_paused_triggered_and_removed(shop: Shop) -> None:
    shop.said("schedule", "create", "nightly", "--workflow", "pay", "--cron", "0 3 * * *", "--input", "3")

    assert "nightly" in shop.said("schedule", "ls")
    assert shop.said("schedule", "next", "nightly", "-n", "3").count("T03:00:00Z") == 3
    assert "paused" in shop.said("schedule", "pause", "nightly", "--reason", "holiday")
    assert "holiday" in shop.said("schedule", "show", "nightly")
    started = shop.said("schedule", "trigger", "nightly", "--request-id", "r1").strip()
    assert started == "nightly/trigger-r1"
    assert shop.said("execution", "result", started, "--wait", "20s") == '"receipt-3"\n'
    assert "next" in shop.said("schedule", "resume", "nightly")
    backfill = ["--since", "2026-01-01T00:00:00Z", "--until", "2026-01-03T00:00:00Z", "--overlap", "allow"]
    shop.said("schedule", "backfill", "nightly", *backfill)
    assert shop.said("execution", "result", "nightly/2026-01-01T03:00:00Z", "--wait", "20s") == '"receipt-3"\n'
    past = ["--since", "2020-01-01T00:00:00Z", "--until", "2025-01-01T00:00:00Z"]
    assert "backfills in progress" in shop.said("schedule", "backfill", "nightly", *past)
    assert shop.said("schedule", "stop-backfills", "nightly") == "nightly: backfills stopped\n"
    assert "backfills" not in shop.json("schedule", "stop-backfills", "nightly")
    ended_with(shop.run("schedule", "stop-backfills", "none"), 4, "not_found")
    ended_with(shop.run("schedule", "create", "x", "--workflow", "pay", "--cron", "61 * * * *"), 2, "bad_payload")
    ended_with(
        shop.run("schedule", "create", "x", "--workflow", "pay", "--cron", "61 * * * *", "--input", "1"),
        2,
        "bad_schedule",
        "minute",
    )
    shop.said("schedule", "delete", "nightly")
    ended_with(shop.run("schedule", "show", "nightly"), 4, "not_found")


def test_schedule__changed__keeps_what_is_not_named(shop: Shop) -> None:
    create = ["schedule", "create", "weekly", "--workflow", "pay", "--cron", "0 3 * * MON", "--input", "3"]
    more = ["--catchup-window", "2d", "--retention", "3d", "--start", "2026-01-31", "--end", "2999-01-01T06:00:00Z"]
    shop.said(*create, *more, "--zone", "Europe/Berlin", "--tag", "team:a", "--jitter", "1m")
    made = shop.json("schedule", "show", "weekly")
    assert (made["catchup_window_seconds"], made["retention_seconds"]) == (172_800, 259_200)
    assert (made["start"], made["end"]) == ("2026-01-31T00:00:00Z", "2999-01-01T06:00:00Z")
    ended_with(shop.run(*create), 3, "conflict", "update it")

    said = shop.said("schedule", "update", "weekly", "--cron", "0 4 * * MON", "--end", "none", "--jitter", "none")
    assert "0 4 * * MON Europe/Berlin" in said
    changed = shop.json("schedule", "show", "weekly")

    gone = {"end", "jitter_seconds"}
    same = {name for name in made if name not in ("cron", "revision", "next", "judged_through", *gone)}
    assert {name: changed.get(name) for name in same} == {name: made[name] for name in same}
    assert not gone & set(changed)
    assert "04:00:00" in shop.said("schedule", "next", "weekly", "-n", "1")
    assert "Europe/Berlin" in shop.said("schedule", "next", "weekly", "-n", "1")
    ended_with(shop.run("schedule", "update", "weekly"), 2, "user", "no changes")
    ended_with(shop.run("schedule", "update", "none", "--cron", "@daily"), 4, "not_found")
    ended_with(shop.run("schedule", "update", "weekly", "--end", "soon"), 2, "user", "--end")
    shop.said("schedule", "delete", "weekly")


def test_times__dates_and_ages__are_taken_and_errors_name_the_option(shop: Shop) -> None:
    shop.said("schedule", "create", "hourly", "--workflow", "pay", "--cron", "@hourly", "--input", "3", "--paused")
    backfill = ["schedule", "backfill", "hourly"]

    shop.said(*backfill, "--since", "2026-10-01", "--until", "2026-10-01T04:00:00+02:00", "--overlap", "allow")
    shop.said(*backfill, "--since", "3h", "--until", "1h")
    assert shop.json("event", "replay", "hear", "--since", "0s", "--until", "2999-01-01")["count"] == 0
    for command in (backfill, ["event", "replay", "hear"]):
        ended_with(shop.run(*command, "--since", "soon", "--until", "1h"), 2, "user", "--since 'soon'")
        ended_with(shop.run(*command, "--since", "3h", "--until", "x"), 2, "user", "--until 'x'")
    shop.said("schedule", "delete", "hourly")


def test_status__in_any_case__is_taken_and_others_are_listed(shop: Shop) -> None:
    shop.said("execution", "start", "pay", "--input", "5", "--id", "cased")
    shop.said("execution", "result", "cased", "--wait", "20s")

    assert "cased" in shop.said("execution", "ls", "--status", "succeeded")
    ended_with(shop.run("execution", "ls", "--status", "done"), 2, "bad_payload", "--status 'done'", "TIMED_OUT")
    assert "match" in shop.said("execution", "bulk", "retry", "--status", "Succeeded", "--dry-run")


def test_signal__to_one_that_is_started_if_need_be(shop: Shop) -> None:
    start = ["--start", "order", "--input", '"pen"', "--tag", "shop:s"]

    assert "started with signal hello" in shop.said("execution", "signal", "sws", "hello", *start)
    assert shop.said("execution", "signal", "sws", "go", *start) == "sws: signal go sent\n"
    assert shop.said("execution", "result", "sws", "--wait", "20s") == '["pen"]\n'
    ended_with(shop.run("execution", "signal", "sws", "go", *start, "--reuse", "never"), 3, "execution_closed")
    ended_with(shop.run("execution", "signal", "sws", "go", "--input", "1"), 2, "user", "--start")


def test_workflow_ls__asked__reports_who_serves_them(shop: Shop) -> None:
    assert [each["name"] for each in shop.json("workflow", "ls")] == ["order", "pay"]
    assert "Charge once." in shop.said("workflow", "ls")
    assert shop.said("workflow", "patches") == "no open execution has marked a patch, and no live worker has one\n"


# Finding the server


def test_server__named_by_option_or_environment__is_asked(shop: Shop, tmp_path: Path) -> None:
    by_option = run("workflow", "ls", "--json", "--server", shop.server.url, folder=tmp_path)
    by_environment = run("workflow", "ls", "--json", folder=tmp_path, HEADGATE_SERVER=f"{shop.server.url}/")

    assert by_option.stdout == by_environment.stdout != ""
    assert not (tmp_path / ".headgate").exists()


@pytest.mark.parametrize(
    ("url", "exit_code", "code"),
    [("http://127.0.0.1:1", 75, "transient"), ("nowhere", 2, "bad_setting"), ("ftp://x", 2, "bad_setting")],
)
def test_server__not_there__says_what_to_do(tmp_path: Path, url: str, exit_code: int, code: str) -> None:
    ended_with(run("execution", "ls", "--server", url, folder=tmp_path), exit_code, code, "--server")


def test_server__another_program__is_reported_from_ours(shop: Shop, tmp_path: Path) -> None:
    # Below this path nothing of ours is found, and the problem is not one of the API's.
    ended = run("execution", "ls", "--server", f"{shop.server.url}/elsewhere", folder=tmp_path)

    ended_with(ended, 4, "not_found")


def test_drain__someone_follows__the_server_ends_soon(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with Server(tmp_path, "--app", "shop:app") as server:
        import signal

        httpx.post(f"{server.url}/api/v1/executions", json={"workflow": "order", "input": "x", "id": "o"})
        with httpx.stream("GET", f"{server.url}/api/v1/executions/o/watch", timeout=20) as following:
            lines = following.iter_lines()
            assert next(lines).startswith("retry")
            server.signal(signal.SIGTERM)
            rest = list(lines)

        assert server.exit_code(5.0) == 0
    assert any(line.startswith("data: ") for line in rest)
