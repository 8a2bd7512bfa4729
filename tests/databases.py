"""Starts PostgreSQL and MariaDB in a folder of their own, on a free loopback port, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.ports import free_port

PASSWORD: Final = "s3cret-of-the-test"
_UP_WITHIN_SECONDS: Final = 60.0
_USER: Final = "nobody"


class Database:
    """A server of ours, up until `stop`."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, url: str) -> None:
        self.url = url
        self._process = process
        self._folder = folder

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def start_postgres() -> Database:
    """Return a PostgreSQL with the user `reader`, who owns the database `shop`."""
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    folder, port = _folder(), free_port()
    password = folder / "password"
    password.write_text(PASSWORD)
    _own(password)
    data = folder / "data"
    _run([str(binaries / "initdb"), "-D", str(data), "-U", "reader", "-A", "scram-sha-256", "--no-sync",
          "-E", "UTF8", "--locale=C", f"--pwfile={password}"], folder)  # fmt: skip
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder),
               "-c", "fsync=off", "-c", "logging_collector=off"]  # fmt: skip
    process = _spawn(command, folder)
    database = Database(process, folder, f"postgresql+psycopg://reader@127.0.0.1:{port}/postgres")
    _wait(database, process, folder, lambda: _is_up_postgres(port))
    return database


def start_mariadb() -> Database:
    """Return a MariaDB with the user `reader`, who may do everything in the database `shop`."""
    folder, port = _folder(), free_port()
    data = folder / "data"
    _run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
          "--skip-test-db"], folder)  # fmt: skip
    init = folder / "init.sql"
    init.write_text(
        "CREATE DATABASE shop;\n"
        f"CREATE USER reader@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
        "GRANT ALL ON *.* TO reader@'127.0.0.1';\n"
    )
    _own(init)
    command = [
        "mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
        f"--socket={folder}/s", f"--init-file={init}", f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=16M",
        "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve",
    ]  # fmt: skip
    process = _spawn([shutil.which("mariadbd") or "/usr/sbin/mariadbd", *command[1:]], folder)
    database = Database(process, folder, f"mysql+pymysql://reader@127.0.0.1:{port}/shop")
    _wait(database, process, folder, lambda: _is_up_mariadb(port))
    return database


def _is_up_postgres(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(host="127.0.0.1", port=port, user="reader", password=PASSWORD, dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def _is_up_mariadb(port: int) -> bool:
    import pymysql  # type: ignore[import-untyped]

    try:
        pymysql.connect(host="127.0.0.1", port=port, user="reader", password=PASSWORD, database="shop").close()
    except pymysql.err.OperationalError:
        return False
    return True


def _wait(database: Database, process: subprocess.Popen[bytes], folder: Path, is_up: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + _UP_WITHIN_SECONDS
    while not is_up():
        if process.poll() is not None or time.monotonic() > ends_at:
            log = (folder / "log").read_text(errors="replace")[-2000:]
            database.stop()
            raise RuntimeError(f"the database did not start:\n{log}")
        time.sleep(0.05)


def _folder() -> Path:
    # Not below pytest's folder: only root may enter that, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="hg-db-"))
    _own(folder)
    return folder


def _own(path: Path) -> None:
    if os.getuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(path, user.pw_uid, user.pw_gid)


def _identity() -> dict[str, object]:
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam(_USER)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(  # type: ignore[call-overload]
        command, cwd=folder, env=_environ(folder), capture_output=True, text=True, timeout=90, **_identity()
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")


def _spawn(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            command, cwd=folder, env=_environ(folder), stdout=log, stderr=log, stdin=subprocess.DEVNULL, **_identity()
        )


def _environ(folder: Path) -> dict[str, str]:
    return {"PATH": f"{os.environ['PATH']}:/usr/sbin", "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C"}
