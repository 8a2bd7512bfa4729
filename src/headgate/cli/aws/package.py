"""Package of the Lambda functions: built from what is installed beside this Python.

For the architecture of this machine nothing is downloaded: compiled parts are taken as they are installed. For another
one, pip downloads the compiled packages in the same versions. The same files make the same package, byte by byte. What
the functions would refuse at their start is refused here: invalid definitions, alert settings, or an app that cannot be
imported.

A description beside the package, a JSON file, names what it was built for and its hash: Terraform cannot read archives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import py_compile
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import headgate
from headgate.bootstrap.alerts import read_notify_file
from headgate.errors import SettingsError, UserError
from headgate.exit_codes import ExitCode
from headgate.pipelines.lifecycle.starter import FILE

# What only a server, or the command line, needs.
LEFT_OUT: Final = frozenset(
    {
        "grpcio",
        "grpcio-health-checking",
        "grpcio-reflection",
        "faker",
        "httptools",
        "polyfactory",
        "pygments",
        "rich",
        "rich-click",
        "typer",
        "uvicorn",
        "uvloop",
        "wsproto",
    }
)
# Extras that functions use where they are installed beside this program: they serve GraphQL.
OPTIONAL: Final = ("graphql-core", "strawberry-graphql")
UNPACKED_BYTES_MAX: Final = 250_000_000
# What pip calls the platforms of Lambda, by the name of the architecture there.
PLATFORMS: Final = {"x86_64": "x86_64", "arm64": "aarch64"}
MANIFEST: Final = "headgate-package.json"
_HEADGATE: Final = str(Path(sys.executable).parent / "headgate")
# Prints what Terraform needs to know of the app as its last line: the app may print something itself.
_IMPORT: Final = """
import json, sys
import msgspec
sys.path.insert(0, sys.argv[1])
from headgate.bootstrap.store import load_app
from headgate.deployment.activity_functions import activity_functions
from headgate.deployment.bus_rules import bus_rules
from headgate.errors import HeadgateError
try:
    app = load_app(sys.argv[2])
except HeadgateError as error:
    sys.exit(error.message)
print()
functions = msgspec.to_builtins(activity_functions(app.activities.values()))
print(json.dumps({"bus_rules": bus_rules(app.subscriptions.values()), "activity_functions": functions}))
"""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


Described = Mapping[str, Mapping[str, Any]]
_NONE: Final[Described] = {}


class AppNeeds(NamedTuple):
    """What Terraform makes for an app: rules of its subscriptions, and functions of its activities, by name."""

    bus_rules: Described = _NONE
    activity_functions: Described = _NONE


_NO_NEEDS: Final = AppNeeds()


class Manifest(NamedTuple):
    """What a package was built for."""

    architecture: str
    python: str


def read_manifest(package: Path) -> Manifest:
    """Return what a package was built for. Raises `UserError` if it is no package of 'headgate aws package'."""
    try:
        with zipfile.ZipFile(package) as opened:
            return Manifest(**json.loads(opened.read(MANIFEST)))
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as exc:
        raise UserError(f"{package}: not a package of the functions; build it with 'headgate aws package'") from exc


def write_sidecar(package: Path, manifest: Manifest, rules: Described = _NONE, functions: Described = _NONE) -> Path:
    """Write the description beside a package, from which Terraform knows what it was built for. Returns its path.

    `rules` are the rules of the event bus that the subscriptions of the app need, and `functions` those of its
    activities that are invoked asynchronously.
    """
    path = package.with_name(f"{package.name}.json")
    with package.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    content = {**manifest._asdict(), "sha256": digest, "bus_rules": rules, "activity_functions": functions}
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def own_architecture() -> str:
    """Return the architecture of this machine, as Lambda calls it."""
    machine = platform.machine()
    return {platform_name: name for name, platform_name in PLATFORMS.items()}.get(machine, machine)


def distributions() -> dict[str, metadata.Distribution]:
    """Return what the functions need to be installed, headgate itself left out. Raises `SystemExit` for a gap."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [("boto3", True), *_required(metadata.distribution("headgate")), *((name, False) for name in OPTIONAL)]
    while wanted:
        name, is_certain = wanted.pop()
        name = _normal(name)
        if name in found or name in LEFT_OUT:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if is_certain:
                sys.exit(f"{name} is not installed; run: pip install 'headgate[aws]'")
            continue
        wanted += _required(found[name])
    return found


def _required(distribution: metadata.Distribution) -> Iterator[tuple[str, bool]]:
    """Yield what a distribution requires, and whether it does so on every platform."""
    for line in distribution.requires or []:
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement)
        if match is not None and "extra ==" not in marker:
            yield match.group(), not marker


def files(
    pipelines: Path | None = None,
    notify: Path | None = None,
    code: Path | None = None,
    foreign: Mapping[str, metadata.Distribution] | None = None,
) -> dict[str, Path]:
    """Return where each file of the package is, by its path in it. Raises `SystemExit` if one is not there.

    `foreign` are distributions of another architecture, which take the place of the installed ones.
    """
    # First, so that nothing of it takes the place of ours.
    found: dict[str, Path] = {} if code is None else _tree(code, "")
    for distribution in {**distributions(), **(foreign or {})}.values():
        for file in distribution.files or []:
            path = PurePosixPath(str(file))
            # Scripts lie outside, and what was compiled here names another place.
            if ".." not in path.parts and path.suffix != ".pyc":
                found[str(path)] = Path(str(file.locate()))
    found |= _tree(Path(headgate.__file__).parent, "headgate")
    # The version of Headgate, which the functions state.
    for file in metadata.distribution("headgate").files or []:
        if file.name == "METADATA":
            found[str(file)] = Path(str(file.locate()))
    if f"headgate/pipelines/{FILE}" not in found:
        # In a checkout the file is where Terraform reads it.
        found[f"headgate/pipelines/{FILE}"] = Path(headgate.__file__).parents[2] / "deploy" / FILE
    if pipelines is not None:
        found |= _tree(pipelines, "pipelines")
    if notify is not None:
        found["notify.toml"] = notify
    return found


def _tree(folder: Path, under: str) -> dict[str, Path]:
    if not folder.is_dir():
        sys.exit(f"{folder}: there is no such folder")
    return {
        (PurePosixPath(under) / path.relative_to(folder).as_posix()).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def check(
    pipelines: Path | None = None, notify: Path | None = None, code: Path | None = None, app: str = ""
) -> AppNeeds:
    """Check what goes into the package as the functions read it, and return what its app needs.

    Raises `SystemExit` with every problem.
    """
    problems: list[str] = []
    needs = _NO_NEEDS
    if notify is not None:
        try:
            read_notify_file(notify)
        except SettingsError as exc:
            problems.append(exc.message)
    if pipelines is not None:
        done = subprocess.run([_HEADGATE, "validate", str(pipelines)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problems.append((done.stdout + done.stderr).strip())
    if app:
        # In a process of its own, as a function starts: nothing that is imported here already hides a missing module.
        python = [sys.executable, "-c", _IMPORT, str(Path() if code is None else code), app]
        done = subprocess.run(python, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problems.append(done.stderr.strip().rpartition("\n")[2])
        else:
            needs = AppNeeds(**json.loads(done.stdout.strip().rpartition("\n")[2]))
    if problems:
        sys.exit("\n".join(problems))
    return needs


def _compiled(name: str, path: Path, scratch: Path) -> tuple[str, bytes] | None:
    """Return a compiled module. A Lambda cannot store its bytecode, so that each cold start would compile it again."""
    try:
        py_compile.compile(
            str(path),
            cfile=str(scratch),
            dfile=name,
            doraise=True,
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except py_compile.PyCompileError:
        # A template, or meant for another version.
        return None
    module = PurePosixPath(name)
    return f"{module.parent}/__pycache__/{module.stem}.{sys.implementation.cache_tag}.pyc", scratch.read_bytes()


def _downloaded(architecture: str, folder: Path) -> dict[str, metadata.Distribution]:
    """Return the compiled distributions for another architecture, in the installed versions. Raises `SystemExit`."""
    compiled = {name: each for name, each in distributions().items() if not _is_pure(each)}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [f"--platform=manylinux{each}_{PLATFORMS[architecture]}" for each in ("_2_28", "2014", "_2_17")]
    options = ["--only-binary=:all:", "--no-deps", "--implementation=cp", f"--python-version={version}", *wanted]
    named = [f"{name}=={each.version}" for name, each in sorted(compiled.items())]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run([*pip, f"--target={folder}", *options, *named], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"--architecture {architecture}: pip has no packages for it:\n{done.stderr.strip()}")
    found = {_normal(each.metadata["Name"]): each for each in metadata.distributions(path=[str(folder)])}
    return {name: found[name] for name in compiled}


def _is_pure(distribution: metadata.Distribution) -> bool:
    """Whether a distribution has no compiled parts."""
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    return bool(tags) and all(tag.endswith("-any") for tag in tags)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def build(
    target: Path,
    *,
    pipelines: Path | None = None,
    notify: Path | None = None,
    code: Path | None = None,
    architecture: str = "",
    needs: AppNeeds = _NO_NEEDS,
) -> int:
    """Write the package, and return how many bytes it has unpacked. Raises `SystemExit` if that is too much."""
    architecture = architecture or own_architecture()
    if architecture not in PLATFORMS:
        sys.exit(f"--architecture {architecture}: use {' or '.join(PLATFORMS)}")
    manifest = Manifest(architecture, f"{sys.version_info.major}.{sys.version_info.minor}")
    with tempfile.TemporaryDirectory() as folder:
        foreign = {} if architecture == own_architecture() else _downloaded(architecture, Path(folder))
        return pack(target, files(pipelines, notify, code, foreign), manifest, needs)


def pack(target: Path, found: Mapping[str, Path], manifest: Manifest, needs: AppNeeds = _NO_NEEDS) -> int:
    """Write a package of these files, the same bytes each time, and return its size unpacked.

    Raises `SystemExit` if that is too much.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package,
    ):
        _write(package, MANIFEST, json.dumps(manifest._asdict()).encode())
        for name, path in sorted(found.items()):
            compiled = _compiled(name, path, Path(folder) / "module.pyc") if path.suffix == ".py" else None
            for entry, content in ((name, path.read_bytes()), *([compiled] if compiled else [])):
                _write(package, entry, content)
                size += len(content)
    if size > UNPACKED_BYTES_MAX:
        sys.exit(f"{target}: {size:,} bytes unpacked are more than Lambda takes ({UNPACKED_BYTES_MAX:,})")
    write_sidecar(target, manifest, *needs)
    return size


def _write(package: zipfile.ZipFile, entry: str, content: bytes) -> None:
    info = zipfile.ZipInfo(entry, _EPOCH)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    package.writestr(info, content)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Build a package in a process of its own, and return its exit code.

    Sets are compiled in the order of their hashes, which differs in each process unless its seed is fixed.
    """
    command = [sys.executable, "-m", __spec__.name, *arguments]
    return subprocess.run(command, env={**environ, "PYTHONHASHSEED": "0"}, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> None:
    """Build what the command line asks for. Raises `SystemExit`."""
    parser = argparse.ArgumentParser(description="Build the package of the Lambda functions.")
    parser.add_argument("target", type=Path, help="where the package is written")
    parser.add_argument("--pipelines", type=Path, help="folder of definitions that the function `definitions` applies")
    parser.add_argument("--notify", type=Path, help="notify.toml: where alerts go")
    parser.add_argument("--code", type=Path, help="folder with the modules of your app, and whatever else they import")
    parser.add_argument("--app", default="", help="app of the functions, as module:name of that folder")
    parser.add_argument("--architecture", default="", help="x86_64 or arm64; by default that of this machine")
    asked = parser.parse_args(arguments)
    needs = check(asked.pipelines, asked.notify, asked.code, asked.app)
    size = build(
        asked.target,
        pipelines=asked.pipelines,
        notify=asked.notify,
        code=asked.code,
        architecture=asked.architecture,
        needs=needs,
    )
    built = read_manifest(asked.target)
    sys.stdout.write(
        f"{asked.target}: {asked.target.stat().st_size:,} bytes, {size:,} unpacked, for Python {built.python} on "
        f"{built.architecture}\n"
    )


if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            raise
        sys.stderr.write(f"{ended.code}\n")
        sys.exit(ExitCode.INVALID)
