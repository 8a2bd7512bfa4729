"""Run the soaks, print their figures, and replace their sections of docs/reliability.md.

python -m tests.soak                      all parts at full length, about three hours
python -m tests.soak crashes --kills 50   one part, shorter
python -m tests.soak containers           as root, on Debian: the steps of the Dockerfile, and the image's programs
python -m tests.soak installs             the wheel on each Python that is found
python -m tests.soak aws                  the product deployed to an emulator of AWS, story by story; needs Terraform
python -m tests.soak laptop               the commands of "From laptop to AWS"; needs Terraform and the AWS CLI
python -m tests.soak machines             state machines on LocalStack; `make localstack` installs it
python -m tests.soak collections          state machines of the folder that HEADGATE_SOAK_COLLECTIONS names
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.soak import (
    airflow,
    attacks,
    aws,
    collections,
    commands,
    containers,
    crashes,
    dashboards,
    fits,
    handovers,
    installs,
    laptop,
    machines,
    memory,
    overload,
    processes,
    regions,
    requests,
    seeds,
    terraform,
)
from tests.soak.figures import Figure

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
PARTS: Final = (
    "crashes",
    "processes",
    "fits",
    "commands",
    "handovers",
    "regions",
    "seeds",
    "attacks",
    "requests",
    "overload",
    "memory",
    "airflow",
    "containers",
    "dashboards",
    "installs",
    "aws",
    "laptop",
    "collections",
    "machines",
    "terraform",
)
_HEAD: Final = ("| Measured | Result |", "|---|---|")
_OPENING: Final = """# Reliability

What was measured, with the command that prints it and writes its section. `make soak` runs all of them.
"""


def main() -> int:
    """Run the chosen parts; return 1 if a figure misses its requirement."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed-minutes", type=float, default=60.0)
    parser.add_argument("--memory-minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2_760)
    parser.add_argument("--examples", type=int, default=50)
    chosen = parser.parse_args()
    ok = True
    # The collections are not part of the repository.
    usual = [part for part in PARTS if part != "collections" or collections.FOLDER in os.environ]
    for part in chosen.parts or usual:
        began = time.monotonic()
        figures = _run(part, chosen)
        minutes = (time.monotonic() - began) / 60
        rows = [
            f"| {each.what} | {each.value}{'' if each.holds else ' **(requirement missed)**'} |" for each in figures
        ]
        section = "\n".join([_title(part), "", _about(part, chosen, minutes), "", *_HEAD, *rows, ""])
        ok &= all(each.holds for each in figures)
        print(section, flush=True)
        PAGE.write_text(with_section(PAGE.read_text() if PAGE.exists() else _OPENING, section))
    return 0 if ok else 1


def with_section(page: str, section: str) -> str:
    """Return the page with a section in place of the one of the same title, in the order of the parts."""
    title = section.partition("\n")[0]
    opening, *sections = re.split(r"(?m)^(?=## )", page)
    kept = [each for each in sections if not each.startswith(f"{title}\n")]
    order = [_title(part) for part in PARTS]
    ordered = sorted([*kept, section], key=lambda each: order.index(each.partition("\n")[0]))
    return "\n".join(each.rstrip("\n") + "\n" for each in [opening, *ordered])


def _run(part: str, chosen: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="headgate-soak-") as folder:
        runs: dict[str, Callable[[], list[Figure]]] = {
            "crashes": lambda: crashes.run(Path(folder), chosen.kills),
            "processes": lambda: processes.run(Path(folder), chosen.kills),
            "fits": lambda: fits.run(Path(folder)),
            "commands": lambda: commands.run(Path(folder), max(1, chosen.kills // 10)),
            "handovers": lambda: handovers.run(Path(folder), chosen.rounds),
            "regions": lambda: regions.run_all(Path(folder)),
            "seeds": lambda: seeds.run(60 * chosen.seed_minutes),
            "attacks": attacks.run,
            "requests": lambda: requests.run(chosen.examples),
            "overload": overload.run,
            "airflow": lambda: airflow.run(Path(folder)),
            "dashboards": lambda: dashboards.run(Path(folder)),
            "collections": collections.run,
            "machines": lambda: machines.run(Path(folder)),
            "aws": lambda: aws.run(Path(folder)),
            "laptop": lambda: laptop.run(Path(folder)),
            "containers": lambda: containers.run(Path(folder)),
            "installs": lambda: installs.run(Path(folder)),
            "terraform": lambda: terraform.run(Path(folder)),
            "memory": lambda: memory.run(Path(folder), 60 * chosen.memory_minutes),
        }
        return runs[part]()


def _title(part: str) -> str:
    return f"## {part.capitalize()}"


def _about(part: str, chosen: argparse.Namespace, minutes: float) -> str:
    flags = {
        "crashes": f" --kills {chosen.kills}",
        "processes": f" --kills {chosen.kills}",
        "commands": f" --kills {chosen.kills}",
        "handovers": f" --rounds {chosen.rounds}",
        "seeds": f" --seed-minutes {chosen.seed_minutes:g}",
        "requests": f" --examples {chosen.examples}",
        "memory": f" --memory-minutes {chosen.memory_minutes:g}",
    }
    return f"`python -m tests.soak {part}{flags.get(part, '')}`, {minutes:.0f} minutes on two cores."


if __name__ == "__main__":
    sys.exit(main())
