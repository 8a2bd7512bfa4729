"""Where the peers live: a virtual environment and an npm folder of their own, apart from what Headgate depends on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.group import output

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv-peers"
PYTHON = HOME / "bin" / "python"
NPM = HOME / "npm"
INSTALL_SECONDS_MAX = 600.0


def install(name: str, *, wheels: Sequence[str], npm: Sequence[str]) -> None:
    """Install what the peer `name` needs, unless exactly that is there. Raises `CommandError`."""
    wanted = "\n".join([*wheels, *npm])
    stamp = HOME / f"{name}.installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _create()
    # Headgate's pip installs for the other interpreter: Debian's Python cannot put a pip into a new environment.
    _run([sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", *wheels])
    if npm:
        NPM.mkdir(exist_ok=True)
        # Install scripts only report the installation to somebody.
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error"]
        _run(["npm", "install", "--prefix", str(NPM), "--cache", str(NPM / "cache"), *quiet, *npm])
    stamp.write_text(wanted)


def _create() -> None:
    if not PYTHON.exists():
        _run([sys.executable, "-m", "venv", "--without-pip", str(HOME)])
        # Git and the linters ignore the folder.
        (HOME / ".gitignore").write_text("*\n")


def _run(command: Sequence[str]) -> None:
    output(command, seconds_max=INSTALL_SECONDS_MAX, folder=ROOT)
