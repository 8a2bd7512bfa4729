"""Headgate and its peers by turns on the way from a trigger to the job: how long each takes, printed side by side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.measure import Figure
from bench.peers.answer import middle, nearly_worst
from bench.peers.contest import printed_by, say
from bench.peers.environment import install
from bench.peers.fanout_contest import FANOUT_PEERS
from bench.peers.group import CommandError
from bench.peers.start_answer import StartAnswer, parse_answer


@dataclass(frozen=True)
class StartPeer:
    """An engine to compare with. `module` in this package is the script that measures it."""

    name: str
    module: str
    starts: int
    wheels: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


_PREFECT = next(peer for peer in FANOUT_PEERS if peer.module == "prefect_fanout")
START_PEERS = (StartPeer("Prefect", "prefect_start", 3, _PREFECT.wheels, _PREFECT.settings),)
# Ours are so much quicker that more of them take less time.
STARTS_A_ROUND = 40


@dataclass
class StartScore:
    """What the rounds against one peer gave. `trouble` says why there are no more of them."""

    peer: StartPeer
    theirs: list[StartAnswer] = field(default_factory=list)
    ours: list[list[float]] = field(default_factory=list)
    trouble: str = ""


def hold(peers: Sequence[StartPeer], *, rounds: int, headgate: Callable[[int], list[float]] | None) -> list[Figure]:
    """Play the rounds and return what each took. Every run is printed as a line of JSON.

    `headgate` starts so many jobs and returns the milliseconds of each; without it the peers are measured alone. A
    peer that cannot be installed or run leaves the contest; the others go on.
    """
    scores = [StartScore(peer) for peer in peers]
    for score in scores:
        say(f"installing {score.peer.name} …")
        try:
            install(score.peer.module, wheels=score.peer.wheels, npm=())
        except CommandError as exc:
            score.trouble = f"cannot be installed: {exc}"
    for number in range(rounds):
        for score in scores:
            if not score.trouble:
                say(f"round {number + 1} of {rounds}: {score.peer.name} …")
                _play(score, number, headgate)
    return [_figure(score) for score in scores]


def _play(score: StartScore, number: int, headgate: Callable[[int], list[float]] | None) -> None:
    peer = score.peer
    # Who goes first alternates, so that neither always inherits the other's warm cache.
    ours = headgate(STARTS_A_ROUND) if headgate is not None and number % 2 else None
    try:
        theirs = parse_answer(printed_by(peer.module, str(peer.starts), peer.settings))
    except (CommandError, ValueError) as exc:
        score.trouble = f"cannot be run: {exc}"
        return
    if headgate is not None and ours is None:
        ours = headgate(STARTS_A_ROUND)
    score.theirs.append(theirs)
    _record(number, {"peer": peer.name, **asdict(theirs)})
    if ours is not None:
        score.ours.append(ours)
        _record(number, {"peer": "Headgate", "against": peer.name, "p50_ms": middle(ours), "starts": len(ours)})


def _record(number: int, facts: dict[str, object]) -> None:
    print(json.dumps({"round": number + 1, **facts}), flush=True)


def _figure(score: StartScore) -> Figure:
    if score.trouble:
        return Figure(score.peer.name, "not measured", "to be measured", reached=False, notes=score.trouble)
    name = f"{score.peer.name} {score.theirs[0].version}"
    theirs = [span for answer in score.theirs for span in answer.starts_ms]
    said = f"theirs p50 {middle(theirs):,.0f} ms, p99 {nearly_worst(theirs):,.0f} ms"
    way = score.theirs[0].way
    if not score.ours:
        return Figure(f"trigger to job started, {name}", said, "printed", reached=True, notes=way, rounds=theirs)
    every = [span for spans in score.ours for span in spans]
    ratios = [
        statistics.median(answer.starts_ms) / statistics.median(spans)
        for answer, spans in zip(score.theirs, score.ours, strict=True)
    ]
    return Figure(
        f"trigger to job started, {name} / Headgate",
        f"{statistics.median(ratios):.1f}",
        "printed",
        reached=True,
        counted=f"{len(theirs)} against {len(every)} starts",
        notes=f"ours p50 {middle(every):.1f} ms, p99 {nearly_worst(every):.1f} ms; {said}; {way}",
        rounds=ratios,
    )
