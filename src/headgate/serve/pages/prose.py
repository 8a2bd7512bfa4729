"""Prose: sentences of the API as HTML, in which each time, dataset, incident and job is an element of its own.

Sentences name things by their full ids, and times in UTC. On a page, times follow the reader's zone and names are
links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

from headgate.serve.pages import labels
from headgate.serve.pages.api_calls import segment

_NAMED: Final = re.compile(
    r"(?P<time>\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z)"
    r"|(?P<dataset>\burn:dp:[\w.+-]+(?::[\w.+-]+)*)"
    r"|(?P<incident>\bINC-[0-9A-HJKMNP-TV-Z]{26})\b"
    # Jobs get their ids from the run, so that the word before it says what it names.
    r"|(?<=fan-out )(?P<fanout>run_[0-9A-HJKMNP-TV-Z]{26})\b"
    r"|(?<=execution ')(?P<execution>run_[0-9A-HJKMNP-TV-Z]{26})\b"
    r"|(?<=\()(?P<run>run_[0-9A-HJKMNP-TV-Z]{26})\b",
    re.ASCII,
)
_COMMANDS: Final = re.compile(r"; (?:see|to [a-z ]+): headgate [^;]*")
_TIME: Final = Markup('<time class="moment" datetime="{at}" title="{stamp}"><span class="clock">{clock}</span></time>')
_LINKS: Final = {
    "dataset": Markup('<a class="urn" href="/ui/datasets/{address}">{text}</a>'),
    "incident": Markup('<a class="urn" href="/ui/incidents/{address}">{text}</a>'),
    "fanout": Markup('<a class="urn" href="/ui/fanouts/{address}">{text}</a>'),
    "execution": Markup('<a class="urn" href="/ui/executions/{address}">{text}</a>'),
    "run": Markup('<a class="urn" href="/ui/runs/{address}">{text}</a>'),
}


def brief(text: str) -> str:
    """Return a sentence without the commands that pages have as buttons."""
    return _COMMANDS.sub("", text)


def prose(text: str, now: str) -> Markup:
    """Return a sentence as HTML. Everything in it that is not recognized is escaped."""
    return Markup("").join(_parts(brief(text), now))


def _parts(text: str, now: str) -> Iterator[Markup]:
    end = 0
    for found in _NAMED.finditer(text):
        yield escape(text[end : found.start()])
        end = found.end()
        kind, word = found.lastgroup, found.group()
        assert kind is not None, "every branch of the pattern has a name"
        if kind == "time":
            yield _moment(word, now)
            continue
        # A sentence may end with the name.
        name = word.rstrip(".")
        shown = labels.short_urn(name) if kind == "dataset" else name
        yield _LINKS[kind].format(address=segment(name), text=shown) + word[len(name) :]
    yield escape(text[end:])


def _moment(at: str, now: str) -> Markup:
    try:
        precise = labels.precise(at)
    except ValueError:
        # It looks like a time and is none, such as the 31st of February.
        return escape(at)
    assert precise is not None
    return _TIME.format(at=precise, stamp=labels.stamp(precise), clock=labels.clock_time(precise, now))
