"""Records executions of `recorded_app` on a real store: `python -m tests.replay.record [NAME ...]`.

Without names, those that have no recording yet are recorded. One that is committed stays as it was written, by whatever
version wrote it: that is what makes it a guard. Name it only if it is meant to be lost.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Raw

import headgate as hg
from headgate.durable.model.failures import ErrorInfo
from headgate.errors import NotFoundError, StaleClaimError
from headgate.testing import Environment
from tests.replay import recorded_app as mine
from tests.replay.recordings import HISTORIES, laid_out, plain_turns

ROOT = Path(__file__).parents[2]
RECORDED_AT = 1_750_000_000.0

# What has to be recorded, by the name of its file.
Recorded = dict[str, str]


def parcels(env: Environment) -> Recorded:
    env.result(env.start(mine.parcels, ["north", "süd"], id="parcels", tags={"shop": "a"}))
    return {"parcels": "parcels"}


def calls(env: Environment) -> Recorded:
    handle = env.start(mine.calls, ["answered", "hung up", "engaged", "forgotten", "endless", "unheard"], id="calls")
    client = env.service.client
    client.complete_activity(mine.TOKENS.pop(), Raw(b'"hello"'))
    env.run()
    client.fail_activity(mine.TOKENS.pop(), ErrorInfo(type="HungUp", message="rude", retryable=False))
    env.run()
    # Failed, tried again, and answered then.
    client.fail_activity(mine.TOKENS.pop(), ErrorInfo(type="Engaged", message="beep"))
    env.advance("3s")
    client.complete_activity(mine.TOKENS.pop(), Raw(b'"at last"'))
    env.run()
    # No heartbeat, in both of its attempts.
    env.advance("2m2s")
    # Heartbeats, and no end.
    while env.clock.seconds() < RECORDED_AT + 1290:
        with suppress(NotFoundError, StaleClaimError):
            client.beat_activity(mine.TOKENS[-1])
        env.advance("20s")
    # It ends in a moment, and nobody serves the queue any more.
    env.worker.queues = ("default",)
    env.advance("2h")
    assert handle.status() is hg.Status.SUCCEEDED
    mine.TOKENS.clear()
    return {"calls": "calls"}


def alarms(env: Environment) -> Recorded:
    env.result(env.start(mine.alarms, 4, id="alarms"))
    return {"alarms": "alarms"}


def approval(env: Environment) -> Recorded:
    handle = mine.approval.start(3, id="approval")
    handle.signal("vote", "early", id="first")
    handle.signal("stamp", {"address": "kept", "grams": 1})
    handle.signal("vote")
    env.run()
    handle.signal("vote", [1, 2.5, None, {"deep": ["é", "\U0001f680"]}])
    handle.signal("vote", "one too many")
    env.result(handle)
    return {"approval": "approval"}


def mailroom(env: Environment) -> Recorded:
    handle = mine.mailroom.start(id="mailroom")
    handle.signal("letter", "before")
    env.run()
    handle.signal("bill", "gas")
    handle.signal("letter", "during")
    env.run()
    assert handle.query("sorted")
    handle.signal("letter", "after")
    env.result(handle)
    return {"mailroom": "mailroom"}


def account(env: Environment) -> Recorded:
    handle = env.start(mine.account, 10, id="account")
    client = env.service.client
    assert handle.update("deposit", 5) == 15
    for name, input in (("deposit", b"-1"), ("deposit", b'"x"'), ("break_open", b"null"), ("none", b"null")):
        client.ask_update(handle.id, name, Raw(input))
        env.run()
    client.ask_update(handle.id, "audit")
    env.advance("2m")
    client.ask_update(handle.id, "linger")
    env.run()
    handle.signal("close")
    env.result(handle)
    return {"account": "account"}


def family(env: Environment) -> Recorded:
    env.start(mine.approval, 1, id="taken")
    env.result(env.start(mine.parent, "taken", id="parent"))
    env.advance("3d")
    return {
        "parent": "parent",
        "child_failed": "parent~1.2",
        "child_spoken_to": "parent~1.3",
        "child_terminated": "parent.terminate",
        "child_cancelled": "parent.cancel",
        "child_abandoned": "parent.abandon",
    }


def laps(env: Environment) -> Recorded:
    handle = mine.laps.start(3, [], id="laps", timeout="30d", memo={"why": "fun"})
    for number in range(3):
        handle.signal("lap", number, id=f"lap-{number}")
    env.result(handle)
    return {"laps": "laps"}


def retired(env: Environment) -> Recorded:
    """A patch that is deprecated."""
    handle = env.start(mine.retired, "house", id="retired")
    env.result(handle)
    return {"retired": "retired"}


def renovated(env: Environment) -> Recorded:
    """Begun before the change and ended after it; begun and ended after it."""
    mine.Stage.is_before_patch = True
    try:
        old = env.start(mine.renovated, "house", id="old")
    finally:
        mine.Stage.is_before_patch = False
    new = env.start(mine.renovated, "shed", id="new")
    for handle in (old, new):
        handle.signal("on")
        env.result(handle)
    return {"renovated_before": "old", "renovated_after": "new"}


def mended(env: Environment) -> Recorded:
    mine.Stage.is_broken = True
    try:
        handle = env.start(mine.mended, "bridge", id="mended")
        env.advance("1h")
        assert handle.status() is hg.Status.STUCK
    finally:
        mine.Stage.is_broken = False
    handle.signal("thanks", "a lot")
    env.service.client.redrive(handle.id)
    env.result(handle)
    return {"mended": "mended"}


def drawn(env: Environment) -> Recorded:
    env.result(env.start(mine.drawn, 3, id="drawn", memo={"asked": ["by", 1]}))
    return {"drawn": "drawn"}


def announcer(env: Environment) -> Recorded:
    listener = env.start(mine.approval, 1, id="listener")
    env.result(env.start(mine.announcer, "listener", id="announcer"))
    env.result(listener)
    return {"announcer": "announcer", "approval_by_others": "listener"}


def workshop(env: Environment) -> Recorded:
    env.result(env.start(mine.workshop, 3, id="workshop"))
    mine.TOKENS.clear()
    return {"workshop": "workshop"}


def tidy(env: Environment) -> Recorded:
    handle = env.start(mine.tidy, "room", id="tidy")
    handle.cancel("please")
    env.run()
    handle.cancel("now")
    env.run()
    unbegun = env.start(mine.tidy, "attic", id="unbegun", delay="1h")
    unbegun.cancel("not at all")
    env.advance("2h")
    mine.TOKENS.clear()
    return {"tidy": "tidy", "tidy_unbegun": "unbegun"}


def lodger(env: Environment) -> Recorded:
    handle = env.start(mine.lodger, "lodger", id="lodger")
    env.advance("1s")
    handle.terminate("no rent")
    env.run()
    mine.TOKENS.clear()
    return {"lodger": "lodger"}


def overtime(env: Environment) -> Recorded:
    env.start(mine.overtime, "shift", id="overtime")
    env.advance("2h")
    return {"overtime": "overtime"}


def failure(env: Environment) -> Recorded:
    env.start(mine.failure, "bread", id="failure")
    return {"failure": "failure"}


def redialled(env: Environment) -> Recorded:
    env.result(env.start(mine.redialled, "0800", id="redialled"))
    return {"redialled": "redialled"}


def labelled(env: Environment) -> Recorded:
    """Headers of the start, of a signal, and of what the code starts and sends."""
    client = env.service.client
    client.start("labelled", Raw(b"1"), execution_id="labelled", headers={"tenant": "acme"})
    client.signal("labelled", "go", headers={"by": "hand"})
    env.run()
    assert env.result(mine.labelled.handle("labelled")) == {"tenant": "acme"}
    return {"labelled": "labelled", "labelled_child": "labelled.child"}


def repaired(env: Environment) -> Recorded:
    """An activity repeated while timer, child and another activity are open; then an error in the code, and its fix."""
    handle = env.start(mine.repaired, "roof", id="repaired")
    client = env.service.client
    client.reset("repaired", "find", reason="the roof was measured wrongly", request_id="first")
    env.run()
    mine.Stage.is_wrong = True
    try:
        handle.signal("vote", "tiles")
        env.run()
        assert handle.status() is hg.Status.FAILED
    finally:
        mine.Stage.is_wrong = False
    client.retry_from_failure("repaired", reason="the error is fixed", request_id="second")
    env.run()
    client.complete_activity(mine.TOKENS.pop(), Raw(b'"hello"'))
    env.result(handle)
    mine.TOKENS.clear()
    return {"repaired": "repaired", "child_repaired": "roof.child"}


def persistent(env: Environment) -> Recorded:
    """Runs of a retry policy."""
    env.result(env.start(mine.persistent, "house", id="persistent"))
    once = hg.Retry(attempts=2, first=30.0, jitter=0)
    with suppress(hg.ExecutionFailure):
        env.result(env.start(mine.persistent, "house", id="persistent_twice", retry=once))
    env.result(env.start(mine.guardian, "house", id="guardian"))
    return {"persistent": "persistent", "persistent_twice": "persistent_twice", "guardian": "guardian"}


def recalled(env: Environment) -> Recorded:
    handle = env.start(mine.recalled, "lamp", id="recalled")
    env.advance("2s")
    env.advance("2m")
    env.service.client.fail_activity(mine.TOKENS[-1], ErrorInfo(type="Cancelled", message="it is on its way back"))
    env.result(handle)
    return {"recalled": "recalled"}


SCENARIOS: tuple[Callable[[Environment], Recorded], ...] = (
    parcels,
    calls,
    alarms,
    approval,
    mailroom,
    account,
    family,
    laps,
    renovated,
    retired,
    mended,
    drawn,
    announcer,
    workshop,
    tidy,
    lodger,
    overtime,
    failure,
    redialled,
    labelled,
    persistent,
    repaired,
    recalled,
)


def record(folder: Path, wanted: list[str]) -> list[Path]:
    """Write what is wanted, or what is missing if nothing is named, and return the files."""
    written = []
    for scenario in SCENARIOS:
        with Environment(mine.app, start_seconds=RECORDED_AT) as env:
            for name, execution_id in scenario(env).items():
                path = folder / f"{name}.json"
                if name in wanted or not (wanted or path.exists()):
                    row = env.service.client.get(execution_id)
                    turns = plain_turns(env.service.client.history(execution_id))
                    path.write_text(_without_machine(laid_out(execution_id, row.workflow, turns)))
                    written.append(path)
    return written


def _without_machine(text: str) -> str:
    """Return the text with the paths in tracebacks as they are below the repository and the standard library."""
    library = Path(sysconfig.get_path("stdlib")).parent
    return text.replace(f"{ROOT}/", "").replace(f"{library}/", "")


if __name__ == "__main__":
    for made in record(HISTORIES, sys.argv[1:]):
        print(made.relative_to(ROOT))
