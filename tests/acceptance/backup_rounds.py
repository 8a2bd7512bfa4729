"""Backs up and restores a home in child processes, kills each with SIGKILL at a random moment, and checks the rest.

Arguments: the home, a backup of it with keys, a working folder, the number of rounds, the seed. Prints how many
backups and restores were killed before they had finished, and how many files and homes are there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headgate.bootstrap.backup import back_up, restore
from headgate.bootstrap.store import database_path
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.sqlite.partial_folder import PREFIX
from headgate.store.sqlite.snapshot import row_counts

CLOCK = SystemClock()


def settings_of(home: Path) -> Settings:
    return Settings.load({}, None, {"home": str(home)})


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def killed(work: Callable[[], object], after_seconds: float | None) -> bool:
    """Run `work` in a child process and kill it, or let it end; return whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if after_seconds is not None:
        time.sleep(after_seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main() -> None:
    home, whole, folder = (Path(each) for each in sys.argv[1:4])
    rounds, chance = int(sys.argv[4]), random.Random(int(sys.argv[5]))
    source = settings_of(home)
    cut_backups = cut_restores = whole_backups = whole_homes = 0

    def write(target: Path) -> None:
        back_up(source, CLOCK, target, build="test", with_keys=True)

    def read(file: Path, target: Path, *, dry_run: bool = False) -> None:
        restore(settings_of(target), CLOCK, file, keys=None, allow_audit_faults=False, dry_run=dry_run)

    # The first run loads modules.
    write(folder / "first.tar")
    read(whole, folder / "first")
    counts = row_counts(database_path(settings_of(folder / "first")))
    backup_seconds = 2 * seconds(lambda: write(folder / "second.tar"))
    restore_seconds = 2 * seconds(lambda: read(whole, folder / "second"))

    def moment(number: int, seconds_max: float) -> float | None:
        # Some run to their end: on a machine that becomes busy, all others may be killed before it.
        return None if number % 5 == 0 else chance.uniform(0, seconds_max)

    for number in range(rounds):
        target = folder / f"{number}.tar"
        cut_backups += killed(partial(write, target), moment(number, backup_seconds))
        if target.exists():
            whole_backups += 1
            read(target, folder / "unused", dry_run=True)
        restored = folder / f"home-{number}"
        cut_restores += killed(partial(read, whole, restored), moment(number, restore_seconds))
        if restored.exists():
            whole_homes += 1
            assert row_counts(database_path(settings_of(restored))) == counts, f"round {number}: a half home"
    assert not (folder / "unused").exists()
    # The next run deletes the partial folders of the killed ones.
    write(folder / "last.tar")
    assert not list(folder.glob(f"{PREFIX}*"))
    print(cut_backups, cut_restores, whole_backups, whole_homes)


if __name__ == "__main__":
    main()
