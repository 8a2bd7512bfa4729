"""Runs the steps of a Dockerfile in a folder, where there is no container engine.

Every image of the steps is a copy of one Debian root that mmdebstrap makes, with Debian's own Python in place of that
of the image: the steps are run, and not the image's base. What the file may say is what is read here; anything else is
refused, so that no step is passed over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

# The release and the Python of the image that the Dockerfile names.
IMAGE: Final = "python:3.11-slim-bookworm"
RELEASE: Final = "bookworm"
_PACKAGES: Final = "python3,python3-venv,ca-certificates"
_INSTRUCTION: Final = re.compile(
    r"(FROM|RUN|COPY|ENV|WORKDIR|VOLUME|EXPOSE|USER|STOPSIGNAL|ENTRYPOINT|CMD) +(.+)", re.DOTALL
)
# How this machine reaches its package index, as a container engine passes it on.
_NETWORK_FILES: Final = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
_NETWORK_VARIABLES: Final = re.compile(r"PIP_\w+|\w*_proxy|SSL_CERT_\w+", re.IGNORECASE)


class Step(NamedTuple):
    """A COPY or RUN, with the folder and the environment that the lines before it set."""

    instruction: str
    text: str
    folder: str
    environ: Mapping[str, str]


@dataclass
class Stage:
    """One image of a Dockerfile: its steps, and how it is run."""

    name: str
    base: str
    # COPY and RUN, in order.
    steps: list[Step] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def read_stages(text: str) -> list[Stage]:
    """Return the images of a Dockerfile, the last of which is the one it makes. Raises `ValueError`."""
    stages: list[Stage] = []
    for instruction, rest in _instructions(text):
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(name.strip(), base.strip()))
        else:
            _read(stages[-1], instruction, rest)
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        match = _INSTRUCTION.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{line!r}: this instruction is not read here")
        yield match.group(1), match.group(2)


def _read(stage: Stage, instruction: str, rest: str) -> None:
    match instruction:
        case "RUN" | "COPY":
            stage.steps.append(Step(instruction, rest, stage.folder, dict(stage.environ)))
        case "ENV":
            stage.environ |= dict(each.split("=", 1) for each in shlex.split(rest))
        case "WORKDIR":
            stage.folder = rest
        case "USER":
            stage.user = rest
        case "VOLUME":
            stage.volumes += shlex.split(rest)
        case "EXPOSE":
            stage.ports += [int(each) for each in rest.split()]
        case "STOPSIGNAL":
            stage.stop_signal = rest
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        case "CMD":
            stage.command = json.loads(rest)


def sources(step: str) -> tuple[str, list[str], str]:
    """Return the stage, sources and target of a COPY; the stage is empty for the build's context."""
    words = shlex.split(step)
    stage = ""
    if words[0].startswith("--"):
        option, _, stage = words.pop(0).partition("=")
        if option != "--from":
            raise ValueError(f"COPY {step}: only --from is read here")
    return stage, words[:-1], words[-1]


def build(context: Path, folder: Path) -> tuple[Stage, Path]:
    """Run the steps of the Dockerfile of `context`; return its last stage and the folder with its root.

    Needs root and mmdebstrap. Raises `CalledProcessError` if a step fails.
    """
    stages = read_stages((context / "Dockerfile").read_text())
    clean = folder / "clean"
    _make_debian(clean)
    roots: dict[str, Path] = {}
    for number, stage in enumerate(stages):
        if stage.base != IMAGE:
            raise ValueError(f"FROM {stage.base}: the steps are run in {IMAGE} alone")
        root = roots[stage.name or str(number)] = folder / f"stage-{number}"
        subprocess.run(["cp", "-a", str(clean), str(root)], check=True)
        for step in stage.steps:
            (root / step.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
            if step.instruction == "RUN":
                _run_in(root, step)
            else:
                _copy(step.text, context, roots, root, step.folder)
        (root / stage.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return stages[-1], root


def _make_debian(target: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"], check=True)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", RELEASE, str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for file in map(Path, _NETWORK_FILES):
        if file.exists():
            shutil.copyfile(file, target / str(file).lstrip("/"))


def _network() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _NETWORK_VARIABLES.fullmatch(name)}


def _copy(step: str, context: Path, roots: Mapping[str, Path], root: Path, work: str) -> None:
    stage, found, target = sources(step)
    origin = roots[stage] if stage else context
    place = root / os.path.join(work, target).lstrip("/")  # noqa: PTH118 - `target` may be absolute
    files = [file for each in found for file in sorted(origin.glob(each.lstrip("/")))]
    if not files:
        raise ValueError(f"COPY {step}: nothing is there")
    for file in files:
        if file.is_dir():
            ignored = None if stage else shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(file, place, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            is_folder = target.endswith("/")
            (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place / file.name if is_folder else place)


def _run_in(root: Path, step: Step) -> None:
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    script = 'mount -t proc proc "$1/proc" && exec chroot "$1" sh -c \'cd "$0" && exec sh -c "$1"\' "$2" "$3"'
    subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "-", str(root), step.folder, step.text],
        env={**path, **step.environ, **_network()},
        check=True,
    )


def command_of(
    stage: Stage,
    root: Path,
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    volumes: Mapping[str, Path],
    files: Mapping[str, Path],
) -> list[str]:
    """Return the command that runs an image: as its user, without capabilities, on a root that it cannot write.

    `volumes` are folders that it can write, `files` are folders that it can only read. It has the network of this
    machine, and signals reach its process.
    """
    at = {place: shlex.quote(str(root / place.lstrip("/"))) for place in ("", "proc", "tmp", *volumes, *files)}
    mounts = [f"mount --bind {at['']} {at['']}"]
    mounts += [
        f"mount --bind {shlex.quote(str(source))} {at[place]}" for place, source in [*volumes.items(), *files.items()]
    ]
    mounts += [f"mount -o remount,bind,ro {at[place]}" for place in ("", *files)]
    mounts += [f"mount -t proc proc {at['proc']}", f"mount -t tmpfs -o mode=1777 tmpfs {at['tmp']}"]
    user, _, group = stage.user.partition(":")
    confined = f"setpriv --reuid {user} --regid {group} --clear-groups --no-new-privs"
    confined += " --bounding-set=-all --inh-caps=-all"
    variables = shlex.join(f"{name}={value}" for name, value in {**stage.environ, **environ}.items())
    inner = f'cd {shlex.quote(stage.folder)} && exec {confined} env -i {variables} "$@"'
    script = " && ".join([*mounts, f'exec chroot {at[""]} sh -c {shlex.quote(inner)} - "$@"'])
    return ["unshare", "--mount", "sh", "-ec", script, "-", *stage.entrypoint, *arguments]
