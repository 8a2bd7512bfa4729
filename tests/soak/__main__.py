"""Run the soaks and write docs/reliability.md.

python -m tests.soak                      all parts at full length, about two hours
python -m tests.soak crashes --kills 50   one part, shorter, printed only
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.soak import attacks, crashes, memory, seeds
from tests.soak.figures import Figure

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
PARTS: Final = ("crashes", "seeds", "attacks", "memory")


def main() -> int:
    """Run the chosen parts; return 1 if a figure is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed-minutes", type=float, default=60.0)
    parser.add_argument("--memory-minutes", type=float, default=30.0)
    chosen = parser.parse_args()
    ok = True
    sections: list[str] = []
    for part in chosen.parts or PARTS:
        began = time.monotonic()
        figures = _run(part, chosen)
        minutes = (time.monotonic() - began) / 60
        rows = [f"| {each.what} | {each.value}{'' if each.holds else ' **(not as it must be)**'} |" for each in figures]
        sections.append(
            "\n".join([f"## {part.capitalize()}", "", _about(part, chosen, minutes), "", *_HEAD, *rows, ""])
        )
        ok &= all(each.holds for each in figures)
        print(sections[-1], flush=True)
    if not chosen.parts:
        PAGE.write_text("\n".join([_OPENING, *sections]))
    return 0 if ok else 1


def _run(part: str, chosen: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="headgate-soak-") as folder:
        runs: dict[str, Callable[[], list[Figure]]] = {
            "crashes": lambda: crashes.run(Path(folder), chosen.kills),
            "seeds": lambda: seeds.run(60 * chosen.seed_minutes),
            "attacks": attacks.run,
            "memory": lambda: memory.run(Path(folder), 60 * chosen.memory_minutes),
        }
        return runs[part]()


def _about(part: str, chosen: argparse.Namespace, minutes: float) -> str:
    flags = {
        "crashes": f" --kills {chosen.kills}",
        "seeds": f" --seed-minutes {chosen.seed_minutes:g}",
        "memory": f" --memory-minutes {chosen.memory_minutes:g}",
    }
    return f"`python -m tests.soak {part}{flags.get(part, '')}`, {minutes:.0f} minutes."


_HEAD: Final = ("| Measured | Result |", "|---|---|")
_OPENING: Final = """# Reliability

What was measured, with the command that prints it. `make soak` runs all of it and writes this page.
"""

if __name__ == "__main__":
    sys.exit(main())
