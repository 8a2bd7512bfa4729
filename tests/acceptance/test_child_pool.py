"""The child pool of a local worker: no job suffers for another one, and code that has changed is loaded again."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.fanout.local.child_pool import Assignment, ChildMessage, ChildPool, Unstarted
from headgate.fanout.local.source_files import CHECK_SECONDS
from headgate.fanout.model.child_protocol import Done, Failed, Job, Progress
from headgate.fanout.model.local_access import LocalAccess
from tests.acceptance.program import until


class Site:
    """A project folder with a handler, and a pool that runs it."""

    def __init__(self, folder: Path, processes: int = 1) -> None:
        self.folder = folder
        self.pool = ChildPool(SystemClock(), processes, access=LocalAccess(folders=(str(folder),)))
        self.pool.open()

    def write(self, name: str, text: str) -> None:
        """Write a module. Its time of change differs from that of the version before, however soon it follows."""
        path = self.folder / name
        before = path.stat().st_mtime_ns if path.exists() else time.time_ns() - 10**9
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(before + 2 * 10**9, before + 2 * 10**9))

    def add(self, *keys: int, timeout_seconds: float = 30.0) -> None:
        self.pool.add(
            [Assignment(_job(key), "mine:run", memory_mb=None, timeout_seconds=timeout_seconds) for key in keys]
        )

    def ends(self, count: int) -> list[Done | Failed | Unstarted]:
        """Return the next ends of jobs, in their order."""
        found: list[ChildMessage] = []

        def enough() -> bool:
            messages, _ = self.pool.receive(0.02)
            found.extend(each for each in messages if not isinstance(each, Progress))
            return len(found) >= count

        until(enough, f"{count} ends")
        return [each for each in found if not isinstance(each, Progress)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.pool.close()


def _job(key: int) -> Job:
    return Job(
        key=key, run_id="r", chunk_id=f"chunk-{key:07d}", group="g", lane="main", attempt=1, start=key, items=1,
        source='{"kind":"list"}', input_key="", input=f"[{key}]",
    )  # fmt: skip


def _outputs(ends: list[Done | Failed | Unstarted]) -> dict[int, str | None]:
    return {each.key: each.output if isinstance(each, Done) else repr(each) for each in ends}


def test_stop__the_job_has_ended_meanwhile__the_next_job_is_not_failed_for_it(site: Site) -> None:
    site.write("mine.py", "def run(items):\n    return items\n")
    site.add(0)
    site.ends(1)
    site.add(1)
    # The answer is in the channel and not read, as after a suspension of the worker.
    assert select.select([site.pool._children[0].channel], [], [], 30)[0]

    site.pool.stop(1)
    site.add(2)

    assert _outputs(site.ends(2)) == {1: "[1]", 2: "[2]"}


def test_stop__jobs_wait_behind_the_one_that_runs__they_run_in_another_child(site: Site) -> None:
    site.write("mine.py", "import time\n\n\ndef run(items):\n    time.sleep(60 * (items[0] == 50))\n    return items\n")
    site.add(*range(50))
    site.ends(50)
    site.add(50, 51, 52)
    time.sleep(0.2)

    site.pool.stop(50)

    ends = _outputs(site.ends(3))
    assert "CRASH" in str(ends[50])
    assert {ends[51], ends[52]} == {"[51]", "[52]"}


@pytest.mark.parametrize("name", ["mine.py", "helper.py", "pack/deep.py"])
def test_code__a_module_of_the_project_changes__the_next_job_runs_the_new_code(site: Site, name: str) -> None:
    versions = {
        "mine.py": (
            "import helper\n\n\ndef run(items):\n    from pack import deep\n"
            "    return ['{0}', helper.word, deep.word]\n"
        ),
        "helper.py": "word = '{0}'\n",
        "pack/deep.py": "word = '{0}'\n",
        "pack/__init__.py": "",
    }
    for each, text in versions.items():
        site.write(each, text.format("old"))
    site.add(0)
    assert _outputs(site.ends(1)) == {0: '["old","old","old"]'}

    site.write(name, versions[name].format("new"))
    time.sleep(2 * CHECK_SECONDS)
    site.add(1)

    expected = ["new" if each == name else "old" for each in ("mine.py", "helper.py", "pack/deep.py")]
    assert _outputs(site.ends(1)) == {1: json.dumps(expected, separators=(",", ":"))}


@pytest.mark.parametrize(
    "broken", ["def run(items:\n", "import not_there_yet\n\n\ndef run(items):\n    return items\n", None]
)
def test_code__a_handler_that_could_not_be_loaded_is_repaired__its_jobs_run(site: Site, broken: str | None) -> None:
    if broken is not None:
        site.write("mine.py", broken)
    site.add(1)
    assert _outputs(site.ends(1)) == {1: "Unstarted(key=1)"}
    assert "mine:run" in site.pool.unusable

    site.write("mine.py", "def run(items):\n    return items\n")

    until(lambda: bool(site.pool.retry_unusable()), "another attempt to load it")
    site.add(2)
    assert _outputs(site.ends(1)) == {2: "[2]"}
