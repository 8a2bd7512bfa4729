"""Headgate and its peers by turns on one fan-out of no-op items: who is compared, how many items, which ratio."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.measure import Figure
from bench.peers.contest import Goal, printed_by, rates, say
from bench.peers.environment import install
from bench.peers.fanout_answer import WARM_UP_ITEMS, FanoutAnswer, parse_answer
from bench.peers.group import CommandError


@dataclass(frozen=True)
class FanoutPeer:
    """An engine to compare with. `module` in this package is the script that measures it."""

    name: str
    module: str
    items: int
    wheels: tuple[str, ...]
    goal: Goal
    settings: Mapping[str, str] = field(default_factory=dict)


# So many items that a run takes some seconds on its slower side.
FANOUT_PEERS = (
    FanoutPeer("DBOS queue", "dbos_fanout", 200, ("dbos==3.3.0",), Goal(5)),
    FanoutPeer(
        "Prefect map",
        "prefect_fanout",
        200,
        # With later versions of FastAPI its server cannot be imported.
        ("prefect==3.8.8", "fastapi==0.139.0"),
        Goal(5),
        {
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "60",
        },
    ),
)


@dataclass
class FanoutScore:
    """What the rounds against one peer gave. `trouble` says why there are no more of them."""

    peer: FanoutPeer
    theirs: list[FanoutAnswer] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    trouble: str = ""


def hold(
    peers: Sequence[FanoutPeer], *, rounds: int, headgate: Callable[[int], float] | None, items: int | None = None
) -> list[Figure]:
    """Play the rounds and return the ratios. Every run is printed as a line of JSON.

    `headgate` maps so many items and returns how many a second; without it the peers are measured alone. A peer that
    cannot be installed or run leaves the contest; the others go on. `items` overrides how many are mapped.
    """
    scores = [FanoutScore(peer) for peer in peers]
    for score in scores:
        say(f"installing {score.peer.name} …")
        try:
            install(score.peer.module, wheels=score.peer.wheels, npm=())
        except CommandError as exc:
            score.trouble = f"cannot be installed: {exc}"
    if headgate is not None and peers:
        headgate(WARM_UP_ITEMS)
    for number in range(rounds):
        for score in scores:
            if not score.trouble:
                say(f"round {number + 1} of {rounds}: {score.peer.name} …")
                _play(score, number, items or score.peer.items, headgate)
    return [_figure(score, items or score.peer.items) for score in scores]


def _play(score: FanoutScore, number: int, items: int, headgate: Callable[[int], float] | None) -> None:
    peer = score.peer
    # Who goes first alternates, so that neither always inherits the other's warm cache.
    ours = headgate(items) if headgate is not None and number % 2 else None
    try:
        theirs = parse_answer(printed_by(peer.module, str(items), peer.settings))
    except (CommandError, ValueError) as exc:
        score.trouble = f"cannot be run: {exc}"
        return
    if headgate is not None and ours is None:
        ours = headgate(items)
    score.theirs.append(theirs)
    _record(number, items, {"peer": peer.name, **asdict(theirs)})
    if ours is not None:
        score.ours.append(ours)
        _record(number, items, {"peer": "Headgate", "against": peer.name, "items_per_second": round(ours, 1)})


def _record(number: int, items: int, facts: dict[str, object]) -> None:
    print(json.dumps({"round": number + 1, **facts, "items": items}), flush=True)


def _figure(score: FanoutScore, items: int) -> Figure:
    if score.trouble:
        return Figure(score.peer.name, "not measured", "to be measured", reached=False, notes=score.trouble)
    return rates(
        "fan-out of no-op items",
        f"{score.peer.name} {score.theirs[0].version}",
        ours=score.ours,
        theirs=[each.items_per_second for each in score.theirs],
        goal=score.peer.goal,
        counted=f"{items} items",
        remark=score.theirs[0].durability,
    )
