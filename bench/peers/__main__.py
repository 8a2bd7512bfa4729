"""`make peers`: compare Headgate with each peer, or with those named, and print one table."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn

from bench.measure import show
from bench.peers import fanout_contest, start_contest
from bench.peers.answer import Shape
from bench.peers.contest import PEERS, Ours, figures, hold
from bench.peers.fanout_contest import FANOUT_PEERS
from bench.peers.start_contest import START_PEERS

# Fewer rounds say more about the machine's other work than about the two that are compared.
ROUNDS_MIN = 5
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    options = _options()
    for number in ENDINGS:
        signal.signal(number, _leave)
    chosen = [peer for peer in PEERS if not options.peers or peer.module in options.peers]
    scores = hold(chosen, rounds=options.rounds, headgate=None if options.only_peers else _headgate)
    table = [figure for score in scores for figure in figures(score)]
    mapping = [peer for peer in FANOUT_PEERS if not options.peers or peer.module in options.peers]
    table += fanout_contest.hold(mapping, rounds=options.rounds, headgate=None if options.only_peers else _fan_out)
    starting = [peer for peer in START_PEERS if not options.peers or peer.module in options.peers]
    table += start_contest.hold(starting, rounds=options.rounds, headgate=None if options.only_peers else _starts)
    print(show(table))
    return 0 if all(figure.reached for figure in table) else 1


def _headgate(shape: Shape) -> Ours:
    # Here, so that `--only-peers` needs nothing of Headgate.
    from bench.durable import hundred_way, serial_steps

    return Ours(serial_steps(shape.serial_steps), hundred_way(shape.executions, shape.steps))


def _fan_out(items: int) -> float:
    from bench.fanout import fan_out

    return fan_out(items)


def _starts(count: int) -> list[float]:
    from bench.pipelines_starts import trigger_to_start

    return trigger_to_start(count)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    names = [peer.module for peer in (*PEERS, *FANOUT_PEERS, *START_PEERS)]
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"one of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--only-peers", action="store_true", help="measure the peers without Headgate")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(names):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.rounds < (1 if options.only_peers else ROUNDS_MIN):
        parser.error(f"a comparison takes at least {ROUNDS_MIN} rounds; --only-peers takes one")
    return options


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """End by an exception, so that servers are killed and folders removed. A second signal must not stop that."""
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
