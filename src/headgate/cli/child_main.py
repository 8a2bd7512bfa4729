"""Command line of a child process, such as the worker of a server: it ends when its parent has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading

from headgate.cli import main as program


def main() -> None:
    """Run a command, and request its stop when standard input ends."""
    threading.Thread(target=_stop_with_parent, name="headgate-parent", daemon=True).start()
    program.main()


def _stop_with_parent() -> None:
    # Unbuffered: a buffer that is being read cannot be closed at the end.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
