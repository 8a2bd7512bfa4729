"""Fan-outs with the installed program: split, worked on by real processes, looked into, repaired, run again."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.acceptance.program import OPENS_SQLITE_FILE, PROGRAM, Server, _environ, run, until
from tests.process_state import is_gone

JOBS: Final = '''
import os
import time
from pathlib import Path


def double(items):
    return [2 * int(item) for item in items]


def nap(item):
    time.sleep(0.05)
    return item


def careful(items):
    """Fails for one item until the file `repaired` exists."""
    for item in items:
        if int(item) == 13 and not Path("repaired").exists():
            raise ValueError(f"item {item} is unlucky")
    return len(items)


def odd(item):
    if int(item) % 2:
        raise ValueError(f"{item} is odd")
    return item


def picky(item):
    """Fails for some items until the file `repaired-items` exists."""
    if not Path("repaired-items").exists():
        if item in (1003, 1005):
            raise ValueError(f"{item} is bad")
        if item == 1017:
            raise KeyError("missing")
    return -item


def size(stretch):
    return len(stretch)


def forever(items):
    Path("began").write_text(str(os.getpid()))
    time.sleep(600)
'''


class Site:
    """A folder with handlers, a server that serves it, and the program beside it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder, **self.server.store)

    def said(self, *arguments: str, exit_code: int = 0) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.said(*arguments, "--json", exit_code=exit_code))

    def refused(self, *arguments: str, exit_code: int, code: str, said: str) -> None:
        ended = self.run(*arguments)
        assert (ended.returncode, f"code: {code}" in ended.stderr) == (exit_code, True), ended.stderr
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr


def site_at(folder: Path, **environ: str) -> Iterator[Site]:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "numbers.txt").write_text("".join(f"{number}\n" for number in range(100)))
    with Server(folder, **environ) as server:
        yield Site(folder, server)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that works on chunks itself."""
    yield from site_at(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that leaves all work to others."""
    yield from site_at(tmp_path_factory.mktemp("idle"), HEADGATE_FANOUT_PROCESSES="0")


# With the server alone


def test_submit__watched__succeeds_with_the_servers_own_processes(site: Site) -> None:
    ended = site.run(
        "fanout", "submit", "--handler", "jobs:double", "--lines", "numbers.txt", "--chunk-size", "30", "--run-id", "a",
        "--group", "grs", "--param", "beta=2", "--watch",
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "a"
    assert "SUCCEEDED  4 of 4 completed" in ended.stdout.splitlines()[-1]
    assert "4 chunks of up to 30, 100 items" in ended.stderr
    shown = site.json("fanout", "show", "a")
    assert (shown["status"], shown["counts"]["items_ok"], shown["params"]) == ("SUCCEEDED", 100, {"beta": 2})
    assert "lines of" in site.said("fanout", "show", "a")
    assert site.json("chunk", "show", "a", "chunk-000000000090")["output"] == [2 * each for each in range(90, 100)]
    assert "90 to 99" in site.said("chunk", "show", "a", "chunk-000000000090")


def test_submit__each_kind_of_source__is_split_and_run(site: Site) -> None:
    (site.folder / "m.json").write_text('{"lines": "numbers.txt", "handler": "jobs:double", "group": "m"}')
    for number, source in enumerate(
        (
            ["--range", "5..25", "--handler", "jobs:double"],
            ["--items", "[1, 2, 3]", "--handler", "jobs:double"],
            ["--bytes", "numbers.txt", "--handler", "jobs:size", "--chunk-size", "100"],
            ["--manifest", "m.json"],
        )
    ):
        run_id = f"source-{number}"
        site.said("fanout", "submit", *source, "--run-id", run_id)
        site.said("fanout", "watch", run_id)

    assert site.json("fanout", "show", "source-0")["counts"]["items_ok"] == 20
    assert site.json("fanout", "show", "source-3")["group"] == "m"
    sizes = [each["output"] for each in site.json("fanout", "chunks", "source-2")]
    assert sizes == [100, 100, 90]


def test_submit__the_same_again__changes_nothing_and_other_input_is_refused(site: Site) -> None:
    order = ["fanout", "submit", "--range", "0..4", "--handler", "jobs:double", "--run-id", "same"]
    site.said(*order)

    again = site.run(*order)
    assert (again.returncode, again.stdout) == (0, "same\n")
    assert "already exists" in again.stderr
    site.refused(*order, "--chunk-size", "2", exit_code=3, code="already_started", said="choose another id")


def test_fail_look_repair_redrive__ends_well(site: Site) -> None:
    order = ["--handler", "jobs:careful", "--range", "0..40", "--chunk-size", "10", "--run-id", "careful"]
    ended = site.run("fanout", "submit", *order, "--max-attempts", "2", "--backoff", "10ms", "--watch")

    assert ended.returncode == 1
    assert "careful  PARTIAL  3 of 4 completed, 1 failed" in ended.stdout
    assert "'headgate fanout failures careful' says why" in ended.stdout
    assert "ValueError: item 13 is unlucky" in site.said("fanout", "failures", "careful")
    (group,) = site.json("fanout", "errors", "careful")["groups"]
    assert group["chunk_ids"] == ["chunk-0000010"]
    assert site.said("fanout", "watch", "careful", exit_code=1).count("PARTIAL") == 2
    tried = site.json("chunk", "show", "careful", "chunk-0000010")
    assert [each["outcome"] for each in tried["attempts"]] == ["FAILED", "FAILED"]

    (site.folder / "repaired").touch()
    assert "1 chunk would be redriven" in site.said("fanout", "redrive", "careful", "--failed", "--dry-run")
    redrive = ["fanout", "redrive", "careful", "--fingerprint", group["fingerprint"], "--reason", "repaired"]
    assert site.json(*redrive)["ids"] == ["chunk-0000010"]
    assert "SUCCEEDED" in site.said("fanout", "watch", "careful")
    kinds = [each["kind"] for each in site.json("fanout", "events", "careful")]
    assert kinds == ["ended as PARTIAL", "redriven", "ended as SUCCEEDED"]
    assert "repaired" in site.said("fanout", "events", "careful")
    assert site.said("fanout", "failures", "careful") == "no failures\n"
    site.refused("fanout", "redrive", "careful", "--all", exit_code=3, code="conflict", said="SUCCEEDED")


def test_each__bad_items__fail_alone_and_are_named(site: Site) -> None:
    order = ["--handler", "jobs:odd", "--each", "--range", "0..4", "--chunk-size", "2", "--run-id", "odd"]
    assert "failed items: 2" in site.said("fanout", "submit", *order, "--watch", exit_code=1)

    listed = site.json("fanout", "failures", "odd")

    assert listed["chunks"] == []
    assert [each["item_errors"] for each in listed["chunks_with_failed_items"]] == [
        {"1": "ValueError: 1 is odd"},
        {"3": "ValueError: 3 is odd"},
    ]
    assert "ValueError: 3 is odd" in site.said("fanout", "failures", "odd")


def test_tolerated_failures__within_and_beyond__end_with_0_and_2(site: Site) -> None:
    order = ["--handler", "jobs:odd", "--each", "--range", "0..6", "--chunk-size", "1"]

    well = site.said("fanout", "submit", *order, "--run-id", "lenient", "--tolerated-failures", "50%", "--watch")
    assert "lenient  SUCCEEDED" in well
    assert "note: failed chunks: 3, which is tolerated" in well
    assert "50% failed, then it fails" in site.said("fanout", "show", "lenient")

    ill = site.said(
        "fanout", "submit", *order, "--run-id", "strict", "--tolerated-failures", "0", "--watch", exit_code=1
    )
    assert "strict  FAILED" in ill
    assert "failed, and 0 are tolerated" in ill
    assert "'headgate fanout redrive strict --all'" in ill
    (site.folder / "lenient.json").write_text(
        '{"range": [0, 4], "chunk_size": 1, "handler": "jobs:odd", "each": true, "tolerated_failure_share": 0.5}'
    )
    site.said("fanout", "submit", "--manifest", "lenient.json", "--run-id", "by-manifest", "--watch")


def test_redrive__failed_items__by_item_by_class_and_all_run_alone(site: Site) -> None:
    submit = ["fanout", "submit", "--handler", "jobs:picky", "--each", "--range", "1000..1020", "--chunk-size", "10"]
    site.said(*submit, "--run-id", "picky")
    site.said("fanout", "watch", "picky", exit_code=1)
    assert "17 of 20 ok, 3 failed\n" in site.said("fanout", "show", "picky")

    groups = [line.split() for line in site.said("fanout", "errors", "picky").splitlines()[1:3]]
    assert [(each[1], each[2], each[3]) for each in groups] == [("2", "2", "ValueError:"), ("1", "1", "KeyError:")]
    listed = site.said("fanout", "items", "picky").splitlines()
    assert [(line.split()[0], line.split()[1]) for line in listed[1:4]] == [
        ("3", "chunk-0000000"), ("5", "chunk-0000000"), ("17", "chunk-0000010"),
    ]  # fmt: skip
    site.refused("fanout", "redrive", "picky", "--item", "4", exit_code=3, code="conflict", said="has not failed")
    by_item = site.said("fanout", "redrive", "picky", "--item", "3", "--dry-run")
    assert "1 of them only with their failed items, 1 in all" in by_item

    (site.folder / "repaired-items").touch()
    by_class = site.said("fanout", "redrive", "picky", "--error-class", "ValueError")
    assert ("picky: 1 chunk redriven" in by_class, "failed items, 2 in all" in by_class) == (True, True)
    site.said("fanout", "watch", "picky", exit_code=1)
    assert "19 of 20 ok, 1 failed\n" in site.said("fanout", "show", "picky")
    site.said("fanout", "redrive", "picky", "--failed")
    site.said("fanout", "watch", "picky")
    assert "20 of 20 ok\n" in site.said("fanout", "show", "picky")
    outputs = [each["output"] for each in site.json("fanout", "chunks", "picky")]
    assert outputs == [[-item for item in range(1000, 1010)], [-item for item in range(1010, 1020)]]


def test_failures__more_than_shown__says_how_many(site: Site) -> None:
    site.said(
        "fanout", "submit", "--handler", "jobs:odd", "--each", "--items", str([1, 3, 5, 7]), "--run-id", "odds",
        "--chunk-size", "1", "--max-attempts", "1",
    )  # fmt: skip
    site.said("fanout", "watch", "odds", exit_code=1)

    assert "3 of 4 failed chunks; raise --limit" in site.said("fanout", "failures", "odds", "--limit", "3")
    assert "raise --limit" not in site.said("fanout", "failures", "odds")
    assert "1 of 4 chunks; raise --limit" in site.said("fanout", "chunks", "odds", "--limit", "1")
    assert "2 of 4 failed items; raise --limit" in site.said("fanout", "items", "odds", "--limit", "2")


def test_ls__by_group_time_and_status__lists_what_matches(site: Site) -> None:
    for run_id in ("l1", "l2"):
        site.said(
            "fanout", "submit", "--range", "0..1", "--handler", "jobs:double", "--group", "ls", "--run-id", run_id,
            "--watch",
        )  # fmt: skip

    def listed(*arguments: str) -> list[str]:
        return [each["run_id"] for each in site.json("fanout", "ls", *arguments)]

    assert listed("--group", "ls") == ["l2", "l1"]
    assert listed("--group", "ls", "--latest") == ["l2"]
    assert listed("--group", "ls", "--status", "failed") == []
    assert listed("--group", "ls", "--since", "1h", "--limit", "1") == ["l2"]
    assert listed("--group", "ls", "--until", "1h") == []
    assert set(listed()) >= {"l1", "l2"}
    assert "l2" in site.said("fanout", "ls", "--group", "ls")
    site.refused("fanout", "ls", "--latest", exit_code=2, code="user", said="group")


def test_watch__several_and_as_json__follows_all(site: Site) -> None:
    for run_id in ("w1", "w2"):
        site.said(
            "fanout", "submit", "--range", "0..20", "--each", "--handler", "jobs:nap", "--chunk-size", "5",
            "--run-id", run_id,
        )  # fmt: skip

    states = [json.loads(line) for line in site.said("fanout", "watch", "w1", "w2", "--json").splitlines()]

    last = {state["run_id"]: state for state in states}
    assert {run_id: state["status"] for run_id, state in last.items()} == {"w1": "SUCCEEDED", "w2": "SUCCEEDED"}
    assert [state["chunks"]["completed"] for state in states if state["run_id"] == "w1"][-1] == 4


def test_export_compare_plot__of_a_run__are_written(site: Site) -> None:
    for run_id, stop in (("x1", "10"), ("x2", "20")):
        site.said(
            "fanout", "submit", "--range", f"0..{stop}", "--chunk-size", "5", "--handler", "jobs:double",
            "--run-id", run_id, "--watch",
        )  # fmt: skip

    lines = [json.loads(line) for line in site.said("fanout", "export", "x1").splitlines()]
    assert [line["output"] for line in lines] == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    site.said("fanout", "export", "x1", "--format", "csv", "--output", "x1.csv")
    header, *rows = (site.folder / "x1.csv").read_text().splitlines()
    assert header.startswith("run_id,chunk_id,lane,status")
    assert [row.split(",")[1] for row in rows] == ["chunk-0000000", "chunk-0000005"]
    assert "submitted with different options: source" in site.said("fanout", "compare", "x1", "x2")
    assert site.said("fanout", "plot", "x1", "chunks") == "x1-chunks.svg\n"
    assert "<svg" in (site.folder / "x1-chunks.svg").read_text()
    site.refused("fanout", "export", "x1", "-o", "no/such/file", exit_code=2, code="user", said="no/such/file")


def test_cancel__while_a_chunk_runs__stops_its_process(site: Site) -> None:
    site.said(
        "fanout", "submit", "--items", "[1, 2, 3]", "--chunk-size", "1", "--concurrency", "1", "--handler",
        "jobs:forever", "--run-id", "c",
    )  # fmt: skip
    until(lambda: (site.folder / "began").exists(), "the handler")

    # The others wait for their turn.
    stuck = site.json("fanout", "stuck", "c", "--older-than", "0s")
    assert [(each["chunk_id"], each["kind"]) for each in stuck] == [("chunk-0000000", "OVERDUE")]
    site.said("fanout", "cancel", "c", "--reason", "enough")
    ended = site.said("fanout", "watch", "c", exit_code=1)

    assert "CANCELLED" in ended
    pid = int((site.folder / "began").read_text())
    until(lambda: is_gone(pid), "the end of the process")
    assert "enough" in site.said("fanout", "events", "c")


def test_doctor__open_and_named__says_what_is_wrong(site: Site) -> None:
    site.said("fanout", "submit", "--range", "0..2", "--handler", "jobs:double", "--run-id", "well", "--watch")
    site.run(
        "fanout", "submit", "--range", "0..1", "--handler", "jobs:odd", "--max-attempts", "1", "--run-id", "ill",
        "--watch",
    )  # fmt: skip

    assert site.said("fanout", "doctor", "well") == "OK     well\n"
    ill = site.said("fanout", "doctor", "well", "ill", exit_code=1)
    assert "FAULT  ill: failures: 1 chunk failed" in ill
    assert site.json("fanout", "doctor", "well") == {"well": []}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "said"),
    [
        (["submit", "--range", "0..9", "--chunk-size", "0"], 2, "bad_definition", "chunk_size is 0"),
        (["submit", "--lines", "none.txt"], 2, "bad_payload", "none.txt"),
        (["submit", "--manifest", "none.json"], 2, "bad_payload", "none.json"),
        (["submit", "--manifest", "jobs.py"], 2, "bad_payload", "jobs.py"),
        (["submit", "--items", "@large.json"], 2, "payload_too_large", "item 1"),
        (["submit", "--items", "{}"], 2, "bad_payload", "items"),
        (["submit", "--range", "0..9", "--handler", "jobs"], 2, "bad_definition", "module:function"),
        (["submit", "--range", "0..9", "--lines", "numbers.txt"], 2, "bad_definition", "range and lines are set"),
        (["submit"], 2, "bad_definition", "none is set"),
        (["show", "none"], 4, "not_found", "headgate fanout ls"),
        (["watch", "none"], 4, "not_found", "none"),
        (["chunks", "none"], 4, "not_found", "none"),
        (["redrive", "none", "--all"], 4, "not_found", "none"),
        (["cancel", "none"], 4, "not_found", "none"),
        (["export", "none"], 4, "not_found", "none"),
        (["plot", "none"], 4, "not_found", "none"),
        (["compare", "none", "none"], 4, "not_found", "none"),
        (["reconcile", "none"], 4, "not_found", "none"),
        (["campaign", "none"], 4, "not_found", "none"),
        (["stuck", "none", "--older-than", "x"], 2, "user", "older_than"),
    ],
)
def test_fanout__bad_input__exits_with_the_code(
    site: Site, arguments: list[str], exit_code: int, code: str, said: str
) -> None:
    (site.folder / "large.json").write_text(json.dumps([1, "x" * 300_000]))

    site.refused("fanout", *arguments, exit_code=exit_code, code=code, said=said)


def test_chunk_show__no_such_chunk__is_4_and_a_bad_id_5(site: Site) -> None:
    site.said("fanout", "submit", "--range", "0..1", "--handler", "jobs:double", "--run-id", "s")

    site.refused("chunk", "show", "s", "chunk-0000007", exit_code=4, code="not_found", said="chunk-0000007")
    site.refused("chunk", "show", "s", "7", exit_code=2, code="bad_id", said="chunk-0000500")


# With workers of its own


def test_work__until_idle__does_it_all_and_says_what(idle: Site) -> None:
    ended = idle.run("fanout", "submit", "--range", "0..40", "--chunk-size", "10", "--run-id", "by-hand")
    assert "headgate chunk work --handler MODULE:FUNCTION --run by-hand" in ended.stderr
    assert idle.json("fanout", "show", "by-hand")["chunks"]["pending"] == 4

    done = idle.run("chunk", "work", "--handler", "jobs:double", "--run", "by-hand", "--until-idle", "-p", "2")

    assert done.returncode == 0, done.stderr
    ready, summary = done.stdout.splitlines()
    assert ready.startswith("headgate chunk worker ready  processes=2  handler=jobs:double  run=by-hand")
    assert summary == "4 chunks completed, 0 failed"
    assert idle.json("fanout", "show", "by-hand")["status"] == "SUCCEEDED"
    assert idle.json("chunk", "work", "--until-idle")["completed"] == 0


def test_chunk_show__range_above_zero_and_a_rerun__names_the_true_items(idle: Site) -> None:
    order = ["--handler", "jobs:odd", "--each", "--range", "1000..1004", "--chunk-size", "2", "--run-id", "high"]
    assert idle.run("fanout", "submit", *order).returncode == 0
    assert "2, from 1002 to 1003 (index 2 to 3)\n" in idle.said("chunk", "show", "high", "chunk-0000002")

    idle.run("chunk", "work", "--handler", "jobs:odd", "--run", "high", "--until-idle", "-p", "1")
    idle.said("fanout", "redrive", "high", "--item", "3", "--reason", "repaired")

    shown = idle.said("chunk", "show", "high", "chunk-0000002")
    assert "2, from 1002 to 1003 (index 2 to 3); 1 to run again: 1003 (index 3)\n" in shown
    idle.said("fanout", "cancel", "high")


def test_work__code_is_repaired_between_two_workers__redrive_succeeds(idle: Site) -> None:
    (idle.folder / "fresh.py").write_text("def run(items):\n    return 1 / 0\n")
    order = ["--range", "0..4", "--chunk-size", "2", "--handler", "fresh:run", "--run-id", "fresh"]
    idle.said("fanout", "submit", *order, "--max-attempts", "1")

    assert "2 failed" in idle.said("chunk", "work", "--group", "default", "--until-idle", exit_code=1)
    assert "ZeroDivisionError" in idle.said("fanout", "failures", "fresh")
    (idle.folder / "fresh.py").write_text("def run(items):\n    return 42\n")
    idle.said("fanout", "redrive", "fresh", "--failed")
    idle.said("chunk", "work", "--until-idle")

    assert [each["output"] for each in idle.json("fanout", "chunks", "fresh")] == [42, 42]


def test_work__handler_that_does_not_import__is_refused_before_anything_is_claimed(idle: Site) -> None:
    (idle.folder / "broken.py").write_text("import nothing_of_this_name\n")
    (idle.folder / "leaves.py").write_text("raise SystemExit(3)\n")
    idle.said("fanout", "submit", "--range", "0..2", "--run-id", "unclaimed")

    for handler, said in (
        ("none:run", "No module named 'none'"),
        ("jobs:none", "jobs has no function none"),
        ("broken:run", "nothing_of_this_name"),
        ("leaves:run", "exit code 3"),
        ("jobs", "module:function"),
    ):
        arguments = ["chunk", "work", "--handler", handler, "--run", "unclaimed", "--until-idle"]
        idle.refused(*arguments, exit_code=2, code="bad_definition", said=said)

    assert idle.json("fanout", "show", "unclaimed")["counts"]["attempts"] == 0
    idle.refused("chunk", "work", "--run", "none", "--until-idle", exit_code=4, code="not_found", said="none")


def test_work__handler_of_the_fanout_is_not_here__leaves_it_to_others(idle: Site) -> None:
    idle.said("fanout", "submit", "--range", "0..2", "--handler", "elsewhere:run", "--run-id", "elsewhere")

    left = idle.run("chunk", "work", "--run", "elsewhere", "--until-idle")

    assert left.returncode == 1
    assert "not run: handler 'elsewhere:run'" in left.stdout
    shown = idle.json("fanout", "show", "elsewhere")
    assert (shown["status"], shown["counts"]["attempts"]) == ("RUNNING", 0)


def test_work__handler_of_the_standard_library_by_name_of_a_fanout__is_not_run(idle: Site) -> None:
    for number, handler in enumerate(("os:system", "posix:system", "subprocess:getoutput", "jobs:os.system")):
        run_id = f"sly-{number}"
        idle.said("fanout", "submit", "--items", '["touch sly"]', "--each", "--handler", handler, "--run-id", run_id)
        assert idle.run("chunk", "work", "--run", run_id, "--until-idle").returncode == 1

    assert not (idle.folder / "sly").exists()


def test_work__sigterm__lets_what_runs_end_and_gives_back_the_rest(idle: Site) -> None:
    order = ["--range", "0..60", "--each", "--chunk-size", "10", "--handler", "jobs:nap", "--run-id", "drain"]
    idle.said("fanout", "submit", *order)
    with subprocess.Popen(
        [PROGRAM, "chunk", "work", "--run", "drain", "--processes", "1"],
        cwd=idle.folder,
        env=_environ(idle.server.store),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        until(lambda: idle.server.get("/fanouts/drain")["chunks"]["completed"] >= 1, "the first chunk")
        worker.send_signal(signal.SIGTERM)
        result, _ = worker.communicate(timeout=20)

    assert worker.returncode == 0
    chunks = idle.json("fanout", "show", "drain")["chunks"]
    assert f"{chunks['completed']} chunks completed, 0 failed" in result
    assert (chunks["in_progress"], chunks["completed"] + chunks["pending"]) == (0, 6)
    idle.said("chunk", "work", "--run", "drain", "--until-idle")
    assert idle.json("fanout", "show", "drain")["counts"]["lost"] == 0


def test_watch__no_one_works__exits_with_3_and_says_what_to_do(idle: Site) -> None:
    idle.said("fanout", "submit", "--range", "0..2", "--handler", "jobs:double", "--run-id", "alone")

    stalled = idle.run("fanout", "watch", "alone", "--stall-after", "1s")

    assert stalled.returncode == 5
    assert "stalled: alone: no progress for" in stalled.stderr
    assert "headgate chunk work --run alone" in stalled.stderr
    stuck = idle.said("fanout", "stuck", "alone", "--older-than", "0s")
    assert "NEVER_STARTED" in stuck
    assert "no worker of the main lane is running" in stuck


def test_steer__pause_tune_resume_skip__is_obeyed(idle: Site) -> None:
    order = ["--range", "0..30", "--chunk-size", "10", "--handler", "jobs:double", "--run-id", "steered"]
    idle.said("fanout", "submit", *order)

    assert idle.said("fanout", "pause", "steered", "--reason", "lunch") == "steered: paused\n"
    idle.said("chunk", "work", "--run", "steered", "--until-idle")
    assert idle.json("fanout", "show", "steered")["chunks"]["pending"] == 3
    assert idle.said("fanout", "tune", "steered", "--priority", "9", "--concurrency", "1").startswith("steered:")
    idle.said("fanout", "tune", "steered", "--concurrency", "0")
    assert idle.json("fanout", "show", "steered")["policy"]["concurrency"] is None
    idle.refused("fanout", "tune", "steered", "--priority", "0", exit_code=2, code="bad_definition", said="priority")
    assert "1 chunk skipped" in idle.said("fanout", "skip", "steered", "chunk-0000010")
    assert idle.said("fanout", "resume", "steered") == "steered: resumed\n"
    idle.said("chunk", "work", "--run", "steered", "--until-idle")
    assert "2 of 3 completed, 1 skipped" in idle.said("fanout", "watch", "steered")


def test_bisect_and_reconcile__of_a_poisoned_chunk__find_the_item(idle: Site) -> None:
    order = ["--range", "12..16", "--chunk-size", "4", "--handler", "jobs:careful", "--run-id", "poison"]
    idle.said("fanout", "submit", *order, "--max-attempts", "1")
    for _ in range(2):
        idle.run("chunk", "work", "--run", "poison", "--until-idle")
        (dead,) = idle.json("fanout", "failures", "poison")["chunks"]
        idle.said("fanout", "bisect", "poison", dead["chunk_id"])
    idle.run("chunk", "work", "--run", "poison", "--until-idle")

    (dead,) = idle.json("fanout", "failures", "poison")["chunks"]
    assert (dead["start"], dead["items"]) == (1, 1)
    assert "item 1 is the one that fails" in idle.said("fanout", "bisect", "poison", dead["chunk_id"])
    assert "no differences" in idle.said("fanout", "reconcile", "poison")
    assert "no dead letters" in idle.said("fanout", "dlq", "poison")
    assert "0 dead chunks healed" in idle.said("fanout", "heal", "poison")


def test_bisect__until_alone__one_command_finds_the_item(idle: Site) -> None:
    order = ["--range", "12..16", "--chunk-size", "4", "--handler", "jobs:careful", "--run-id", "isolated"]
    idle.said("fanout", "submit", *order, "--max-attempts", "1")
    idle.run("chunk", "work", "--run", "isolated", "--until-idle")
    (dead,) = idle.json("fanout", "failures", "isolated")["chunks"]

    said = idle.said("fanout", "bisect", "isolated", dead["chunk_id"], "--until-alone")
    assert "until the failing item is alone" in said

    def is_alone() -> bool:
        idle.run("chunk", "work", "--run", "isolated", "--until-idle")
        failed = idle.json("fanout", "failures", "isolated")["chunks"]
        return [(each["start"], each["items"], each["disposition"]) for each in failed] == [(1, 1, "QUARANTINED")]

    until(is_alone, "the failing item alone")
    assert "no differences" in idle.said("fanout", "reconcile", "isolated")


@OPENS_SQLITE_FILE
def test_reconcile__a_counter_altered_in_the_file__is_found_and_repaired_and_the_run_ends(idle: Site) -> None:
    order = ["--range", "0..6", "--chunk-size", "1", "--handler", "jobs:double", "--run-id", "altered"]
    idle.said("fanout", "submit", *order)
    with sqlite3.connect(idle.folder / ".headgate" / "headgate.db") as file:
        (table,) = (
            name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if "fanout" in name
        )
        changed = file.execute(
            f"""UPDATE "{table}" SET body = json_set(body, '$.done', 4)
                WHERE body LIKE '%"CTR#00"%' AND body LIKE '%altered%'"""
        )
        assert changed.rowcount == 1

    found = idle.said("fanout", "reconcile", "altered", exit_code=1)
    assert "counter CTR#00 says done 4, and its rows make 0" in found
    idle.said("fanout", "reconcile", "altered", "--repair")
    assert "no differences" in idle.said("fanout", "reconcile", "altered")

    idle.said("chunk", "work", "--run", "altered", "--until-idle")
    ended = idle.json("fanout", "show", "altered")
    assert (ended["status"], ended["counts"]["done"], ended["counts"]["total"]) == ("SUCCEEDED", 6, 6)


def test_chunks__of_ten_thousand__come_in_pages_and_stuck_reads_none_of_them(idle: Site) -> None:
    idle.said("fanout", "submit", "--range", "0..10000", "--chunk-size", "1", "--run-id", "large")

    listed = idle.json("fanout", "chunks", "large", "--limit", "20000")
    assert [each["start"] for each in listed] == list(range(10_000))
    at = f"{idle.server.url}/api/v1/fanouts/large/chunks"
    first = httpx.get(f"{at}?limit=100").json()
    second = httpx.get(f"{at}?limit=100&cursor={quote(first['cursor'])}").json()
    assert [each["start"] for each in first["chunks"] + second["chunks"]] == list(range(200))

    assert idle.json("fanout", "stuck", "large") == []
    waiting = idle.json("fanout", "stuck", "large", "--older-than", "0s", "--limit", "3")
    assert [(each["chunk_id"], each["kind"]) for each in waiting] == [
        (f"chunk-000000{number}", "NEVER_STARTED") for number in range(3)
    ]


def test_redrive__the_file_is_not_what_it_was__is_refused_with_the_reason(idle: Site) -> None:
    expired = idle.folder / "expired.txt"
    expired.write_text("13\n14\n")
    order = ["--lines", str(expired), "--chunk-size", "1", "--handler", "jobs:careful", "--run-id", "expired"]
    idle.said("fanout", "submit", *order, "--max-attempts", "1")
    idle.run("chunk", "work", "--run", "expired", "--until-idle")
    expired.unlink()

    refused = idle.said("fanout", "redrive", "expired", "--all", exit_code=1)

    assert "expired.txt: No such file or directory; it must be a readable file" in refused
    shown = idle.json("fanout", "show", "expired")
    assert (shown["status"], shown["counts"]["dead"], shown["counts"]["done"]) == ("PARTIAL", 1, 1)


def test_campaign__several_runs__are_added_up_and_watched(idle: Site) -> None:
    for run_id in ("t1", "t2"):
        idle.said(
            "fanout", "submit", "--range", "0..10", "--chunk-size", "5", "--handler", "jobs:double",
            "--campaign", "tiles", "--group", "tiles", "--run-id", run_id,
        )  # fmt: skip
    # Not the ten thousand chunks of another test.
    idle.said("chunk", "work", "--group", "tiles", "--until-idle", "--handler", "jobs:double")

    assert "SUCCEEDED: 4 of 4 chunks completed, 100%" in idle.said("fanout", "campaign", "tiles")
    assert idle.said("fanout", "watch", "--campaign", "tiles").count("SUCCEEDED") == 4
    assert {each["run_id"] for each in idle.json("fanout", "ls", "--campaign", "tiles")} == {"t1", "t2"}


def test_up__sigterm_while_a_chunk_runs__ends_in_time_and_gives_it_back(tmp_path: Path) -> None:
    for site in site_at(tmp_path):
        site.said("fanout", "submit", "--items", "[1]", "--handler", "jobs:forever", "--run-id", "long")
        until(lambda: (tmp_path / "began").exists(), "the handler")
        site.server.signal(signal.SIGTERM)

        assert site.server.exit_code(12.0) == 0
    with Server(tmp_path, HEADGATE_FANOUT_PROCESSES="0") as again:
        found = Site(tmp_path, again).json("fanout", "show", "long")
    assert (found["counts"]["queued"], found["counts"]["lost"], found["counts"]["attempts"]) == (1, 0, 0)


def test_kill_9__the_server_while_it_splits__the_next_server_ends_the_split(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with Server(tmp_path) as server, httpx.Client(base_url=f"{server.url}/api/v1", timeout=60.0) as api:
        body = {"group": "g", "handler": "jobs:double", "range": [0, 15_000], "chunk_size": 1, "run_id": "cut"}
        thread = threading.Thread(target=lambda: _post_until_cut(api, body))
        thread.start()
        until(lambda: api.get("/fanouts/cut").json().get("chunks", {}).get("total", 0) > 300, "a part of the split")
        server.signal(signal.SIGKILL)
        thread.join(60)
    with Server(tmp_path) as server:
        # MiniStack looks at every chunk for each query; a summary asks for none.
        until(lambda: server.get("/fanouts/cut/summary")["status"] != "SPLITTING", "the end of the split", 120)
        assert server.get("/fanouts/cut/summary")["chunks"] == 15_000
        run("fanout", "cancel", "cut", folder=tmp_path)


def _post_until_cut(api: httpx.Client, body: dict[str, Any]) -> None:
    with suppress(httpx.HTTPError):
        api.post("/fanouts", json=body)
