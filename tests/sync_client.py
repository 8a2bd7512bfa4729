"""Generates the sync client from the async one: `python -m tests.sync_client`, which `make docs` runs.

The two differ in `async`, `await` and the names below, and in nothing else, so that only one of them is written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "src" / "headgate" / "durable" / "remote"
SOURCE: Final = FOLDER / "async_client.py"
TARGET: Final = FOLDER / "sync_client.py"
_DOCSTRING: Final = '''"""Client: starts, reads and messages executions of a server over HTTP.

Generated from `async_client.py` by `python -m tests.sync_client`; change that module.
"""
'''
_CHANGES: Final = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bimport asyncio\n", ""),
    (r"\basyncio\.sleep\b", "self.clock.sleep"),
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\bAsync(Client|Connection|RemoteHandle|Iterator)\b", r"\1"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"for each in (\S+):\n\s+yield each\n", r"yield from \1\n"),
    # Of the docstring of the class.
    (r"`async with`", "`with`"),
    (r"\ban(\s+)`with`", r"a\1`with`"),
    # An expression that was awaited needs no brackets of its own.
    (r"\(((?:self\.)[\w.]+\((?:[^()]|\([^()]*\))*\))\)\.", r"\1."),
)


def generated() -> str:
    """Return the source of the sync client."""
    text = re.sub(r'\A""".*?"""\n', _DOCSTRING, SOURCE.read_text(), count=1, flags=re.DOTALL)
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    ruff = [str(Path(sys.executable).parent / "ruff")]
    name = ["--stdin-filename", str(TARGET)]
    for command in ([*ruff, "check", "-q", "--fix", "--select", "I", *name, "-"], [*ruff, "format", *name, "-"]):
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated())
