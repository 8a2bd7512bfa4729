"""Installs: the built wheel in a new environment of each Python, with and without extras, and by pipx.

Interpreters are looked for on the PATH and in pyenv. One that is not found is named, and is no failure.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.soak.figures import Figure

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = ("3.11", "3.12", "3.13")
# Of the core, which is kept small. The second limit is of installed files, compiled modules left out.
CORE_PACKAGES_MAX: Final = 50
CORE_MEGABYTES_MAX: Final = 100
_ENDS_IN_SECONDS: Final = 900
_BUNDLED: Final = ("pip", "setuptools", "pkg_resources", "_distutils_hack")


def run(folder: Path) -> list[Figure]:
    """Build the wheel, install it everywhere, and return what was installed and what worked."""
    _call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (wheel,) = folder.glob("headgate-*.whl")
    constraints = folder / "constraints.txt"
    locked = (ROOT / "requirements.lock").read_text()
    constraints.write_text(re.sub(r" *\\\n( +--hash=\S+( \\\n)?)+", "", locked))
    found: list[Figure] = []
    for version in VERSIONS:
        python = interpreter(version)
        if python is None:
            found.append(Figure(f"Python {version}", "not found on this machine", holds=True))
            continue
        found += _core(folder / f"core-{version}", python, version, wheel, constraints)
        found.append(_all(folder / f"all-{version}", python, version, wheel, constraints))
        found.append(_tests(folder / f"tests-{version}", python, version, constraints))
    return [*found, _pipx(folder / "pipx", wheel, constraints)]


def interpreter(version: str) -> Path | None:
    """Return an interpreter of a version that runs, or None."""
    named = shutil.which(f"python{version}")
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for each in [*([Path(named)] if named else []), *pyenv]:
        asked = [str(each), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if answer == version:
            return each
    return None


def _core(folder: Path, python: Path, version: str, wheel: Path, constraints: Path) -> list[Figure]:
    _environment(folder, python)
    _install(folder, "-c", constraints, wheel)
    packages, megabytes = _size(folder)
    printed = _call(folder / "bin" / "headgate", "--version").strip()
    story = _call(folder / "bin" / "headgate", "demo", "--once", "--http", "127.0.0.1:0", cwd=folder)
    is_small = packages <= CORE_PACKAGES_MAX and megabytes <= CORE_MEGABYTES_MAX
    return [
        Figure(f"Python {version}: the core", f"{packages} packages, {megabytes} MB; {printed}", holds=is_small),
        Figure(f"Python {version}: demo on the core", story.strip().splitlines()[-1], holds="story is over" in story),
    ]


def _all(folder: Path, python: Path, version: str, wheel: Path, constraints: Path) -> Figure:
    _environment(folder, python)
    _install(folder, "-c", constraints, f"{wheel}[all]")
    packages, megabytes = _size(folder)
    command = [str(folder / "bin" / "headgate"), "up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        server.send_signal(signal.SIGTERM)
    holds = "grpc=127.0.0.1:" in ready and "off" not in ready and server.returncode == 0
    return Figure(f"Python {version}: headgate[all]", f"{packages} packages, {megabytes} MB", holds=holds)


def _tests(folder: Path, python: Path, version: str, constraints: Path) -> Figure:
    _environment(folder, python)
    _install(folder, "-r", constraints)
    _install(folder, "--no-build-isolation", "--no-deps", "-e", ROOT)
    program = folder / "bin" / "python"
    arguments = ["-m", "pytest", "-q", "-n", "2", "tests/unit", "tests/acceptance/test_cli.py"]
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    holds = done.returncode == 0
    if not holds:
        print(done.stdout[-4_000:], file=sys.stderr)
    return Figure(f"Python {version}: unit tests", "all pass" if holds else f"exit code {done.returncode}", holds)


def _pipx(folder: Path, wheel: Path, constraints: Path) -> Figure:
    _environment(folder, Path(sys.executable))
    _call(folder / "bin" / "pip", "install", "-q", "pipx")
    places = {"PIPX_HOME": str(folder / "home"), "PIPX_BIN_DIR": str(folder / "programs"), "PIPX_MAN_DIR": str(folder)}
    arguments = ("install", "--python", sys.executable, "--pip-args", f"-c {constraints}", wheel)
    _call(folder / "bin" / "pipx", *arguments, more=places)
    printed = _call(folder / "programs" / "headgate", "--version").strip()
    return Figure("pipx install", printed, holds=printed.startswith("headgate "))


def _environment(folder: Path, python: Path) -> None:
    _call(python, "-m", "venv", folder)


def _install(folder: Path, *arguments: str | Path) -> None:
    """Install into an environment: in a tenth of the time of pip, or with pip where uv cannot, as the Makefile does."""
    try:
        uv = Path(sys.executable).parent / "uv"
        _call(uv, "pip", "install", "-q", "--python", folder / "bin" / "python", *arguments)
    except RuntimeError:
        _call(folder / "bin" / "pip", "install", "-q", "--no-compile", *arguments)


def _size(folder: Path) -> tuple[int, int]:
    """Return how many packages an environment has beyond its own, and their megabytes."""
    (packages,) = (folder / "lib").glob("python*/site-packages")
    names = [each for each in packages.glob("*.dist-info") if not each.name.startswith(("pip-", "setuptools-"))]
    files = [
        each
        for each in packages.rglob("*")
        if each.is_file() and each.suffix != ".pyc" and each.relative_to(packages).parts[0] not in _BUNDLED
    ]
    return len(names), round(sum(each.stat().st_size for each in files) / 1e6)


def _call(*command: str | Path, cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Run a program and return what it prints. Raises `RuntimeError` with its output if it fails."""
    environ = {**os.environ, **(more or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=_ENDS_IN_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout
