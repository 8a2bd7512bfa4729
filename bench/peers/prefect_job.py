"""The flow that Prefect's deployment runs, and the process that serves it: a file by itself, which Prefect loads."""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import time
from pathlib import Path

from prefect import flow


@flow
def job(mark: str) -> None:
    moment = time.time()
    # Whole or not at all: someone waits for the file.
    written = Path(f"{mark}.part")
    written.write_text(str(moment))
    written.rename(mark)


if __name__ == "__main__":
    job.serve(name="bench", print_starting_message=False)
