"""A job that writes a line every 300 ms until the file 'stop' exists or the folder is gone; some are in colour."""

from __future__ import annotations

import time
from pathlib import Path

print("\x1b[1mvacuum warehouse\x1b[0m")
print("\x1b[32mconnected\x1b[0m to warehouse-1, 42 tables")
# It outlives a server that is killed, but not for long.
for number in range(1, 1_000):
    if Path("stop").exists() or not Path(__file__).exists():
        break
    tone = "\x1b[33mskipped, in use\x1b[0m" if number % 7 == 0 else "ok"
    print(f"table {number:03}: {tone}", flush=True)
    time.sleep(0.3)
