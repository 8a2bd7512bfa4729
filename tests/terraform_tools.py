"""Terraform on this machine: the program and a mirror of its providers are searched for, and nothing is downloaded.

`HEADGATE_TEST_TERRAFORM` names a program, a folder with providers, or both, separated by a colon. Otherwise the program
is the `terraform` of the path, and the folder one of those where Terraform itself looks, the provider cache, or one
below /opt. A folder counts if it has the AWS provider as `registry.terraform.io/hashicorp/aws`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "HEADGATE_TEST_TERRAFORM"
_PROVIDER: Final = Path("registry.terraform.io/hashicorp/aws")
_NOT_TRIED: Final = (
    f"not found here (set {VARIABLE}): the tests made the resources through the API; plan and apply were not tried"
)


class Tools(NamedTuple):
    """The program, and a folder with its providers."""

    program: Path
    mirror: Path


def find_tools(environ: Mapping[str, str]) -> Tools | None:
    """Return the Terraform of this machine, if the program and its AWS provider are both here."""
    named = [Path(each) for each in environ.get(VARIABLE, "").split(os.pathsep) if each]
    programs = [each for each in named if each.is_file()]
    program = programs[0] if programs else shutil.which("terraform", path=environ.get("PATH"))
    mirrors = [each for each in (*named, *_usual_mirrors(environ)) if (each / _PROVIDER).is_dir()]
    return Tools(Path(program), mirrors[0]) if program and mirrors else None


def _usual_mirrors(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME", "/"))
    if cache := environ.get("TF_PLUGIN_CACHE_DIR"):
        yield Path(cache)
    yield from (home / ".terraform.d" / name for name in ("plugins", "plugin-cache"))
    data = environ.get("XDG_DATA_HOME") or str(home / ".local" / "share")
    shared = environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    yield from (Path(each) / "terraform" / "plugins" for each in (data, *shared.split(":")))
    yield from sorted(Path("/opt").glob("*/"))


def described(tools: Tools | None) -> str:
    """Return a line that says which Terraform the tests use."""
    return f"Terraform: {_NOT_TRIED if tools is None else f'{tools.program}, providers of {tools.mirror}'}"


# The environment of the machine: tests remove it.
TOOLS: Final = find_tools(os.environ)
