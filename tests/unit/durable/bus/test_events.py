"""Events in the forms that CloudEvents 1.0 gives them, taken in and given out, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.durable.bus import events
from headgate.durable.bus.events import UNTIMED, Event, Mode
from headgate.errors import InvalidPayloadError, PayloadTooLargeError

NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
EVENT = Event(
    type="order.created",
    source="/shop/7",
    id="A-1",
    time=NOON,
    subject="orders/17",
    data={"id": 17, "lines": [1, 2.5, None], "name": "Žluťoučký"},
    dataschema="https://shop.example/order.json",
    extensions={"traceparent": "00-ab-cd-01", "partitionkey": "shop 7"},
)


def document(**changed: Any) -> bytes:
    """A valid structured event with some members replaced, or left out where `...` is given."""
    members: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": 1}} | changed
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidPayloadError) as caught:
        call()
    return str(caught.value)


def plain(event: Event) -> Event:
    return event.decoded()


# The JSON format.


def test_dump__a_full_event__is_the_document_that_the_specification_describes() -> None:
    assert json.loads(events.dump(EVENT)) == {
        "specversion": "1.0",
        "id": "A-1",
        "source": "/shop/7",
        "type": "order.created",
        "time": "2026-01-31T12:00:00.250000Z",
        "subject": "orders/17",
        "dataschema": "https://shop.example/order.json",
        "traceparent": "00-ab-cd-01",
        "partitionkey": "shop 7",
        "data": {"id": 17, "lines": [1, 2.5, None], "name": "Žluťoučký"},
    }


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        Event(type="t", source="s", id="1"),
        Event(type="t", source="s", id="1", data=b"\x00\xff", datacontenttype="image/png"),
        Event(type="t", source="s", id="1", data="<a/>", datacontenttype="application/xml"),
        Event(type="t", source="s", id="1", data="text", datacontenttype="application/json"),
        Event(type="t", source="s", id="1", data=[], time=NOON.astimezone(timezone(timedelta(hours=-8)))),
    ],
    ids=["full", "least", "bytes", "text", "JSON text", "other zone"],
)
def test_load__of_what_was_dumped__is_the_same_event(event: Event) -> None:
    assert events.load(events.dump(event)) == event


def test_dump__bytes_without_a_content_type__are_called_octets_in_base_64() -> None:
    written = json.loads(events.dump(Event(type="t", source="s", id="1", data=b"\x00\xff")))

    assert written["data_base64"] == "AP8="
    assert written["datacontenttype"] == "application/octet-stream"
    assert "data" not in written


def test_parse__json_data__stays_the_very_bytes_that_were_sent() -> None:
    body = (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data": {"price": 1.10,  "n": 12345678901234567890} }'
    )

    parsed = events.parse(body)

    assert isinstance(parsed.data, msgspec.Raw)
    assert bytes(parsed.data) == b'{"price": 1.10,  "n": 12345678901234567890}'
    assert '"data":{"price": 1.10,  "n": 12345678901234567890}' in events.dump(parsed)
    assert plain(parsed).data == {"price": 1.1, "n": 12345678901234567890}


def test_parse__an_event_without_a_time__is_untimed_and_stays_so_when_written() -> None:
    parsed = events.parse(document())

    assert parsed.time == UNTIMED
    assert "time" not in json.loads(events.dump(parsed))
    assert "ce-time" not in events.to_http(parsed)[0]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2018-04-05T17:31:00Z", datetime(2018, 4, 5, 17, 31, tzinfo=UTC)),
        ("2018-04-05t19:31:00.5+02:00", datetime(2018, 4, 5, 17, 31, 0, 500_000, tzinfo=UTC)),
        ("2018-04-05T17:31:00.123456789Z", datetime(2018, 4, 5, 17, 31, 0, 123_457, tzinfo=UTC)),
    ],
)
def test_parse__times_as_rfc_3339_has_them__are_understood(text: str, moment: datetime) -> None:
    assert events.parse(document(time=text)).time == moment


def test_parse__extensions_that_are_numbers_or_booleans__become_their_text() -> None:
    parsed = events.parse(document(sampled=True, sequence=-42, empty=None, note=""))

    assert parsed.extensions == {"sampled": "true", "sequence": "-42", "note": ""}


def test_parse__base_64_that_is_said_to_be_json__is_that_json() -> None:
    encoded = base64.b64encode(b' {"a": 1}\n').decode()

    parsed = events.parse(document(data=..., data_base64=encoded, datacontenttype="application/json"))

    assert plain(parsed).data == {"a": 1}


def test_parse__text_of_another_type_than_json__means_what_it_says() -> None:
    parsed = events.parse(document(data='{"a":1}', datacontenttype="text/plain"))

    assert parsed.data == '{"a":1}'


def test_parse__null_data_and_no_data__are_the_same() -> None:
    assert events.parse(document(data=None)).data is None
    assert events.parse(document(data=...)).data is None
    assert events.parse(document(data=..., data_base64=None)).data is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (document(id=...), "id is missing"),
        (document(id=""), "id is missing"),
        (document(id=None), "id is missing"),
        (document(source=...), "source is missing"),
        (document(source=""), "source is missing"),
        (document(type=...), "type is missing"),
        (document(type=""), "type is missing"),
        (document(type="order.*"), "event type 'order.*'"),
        (document(type=" t"), "event type ' t'"),
        (document(type="t" * 256), "event type"),
        (document(specversion=...), "specversion is missing"),
        (document(specversion="0.3"), "specversion '0.3'"),
        (document(specversion=1.0), "'specversion' is '1.0'; it must be text"),
        (document(id=5), "'id' is '5'; it must be text"),
        (document(source="two words"), "source 'two words' is not a URI"),
        (document(dataschema="/relative"), "dataschema '/relative' is not an absolute URI"),
        (document(datacontenttype="json"), "datacontenttype 'json'"),
        (document(subject="a\x07b"), "subject is"),
        (document(Trace="x"), "attribute name 'Trace'"),
        (document(trace_parent="x"), "attribute name 'trace_parent'"),
        (document(ext={"a": 1}), "attribute 'ext'"),
        (document(ext=1.5), "attribute 'ext'"),
        (document(ext=2**31), "attribute 'ext'"),
        (document(ext="a\nb"), "extension ext is"),
        (document(time="2018-04-05"), "time '2018-04-05'"),
        (document(time="2018-04-05T17:31:00"), "time '2018-04-05T17:31:00'"),
        (document(time="yesterday"), "time 'yesterday'"),
        (document(time=""), "time ''"),
        (document(time=1522949460), "'time' is '1522949460'"),
        (document(data_base64="AP8="), "both data and data_base64"),
        (document(data=..., data_base64="AP8"), "data_base64 is not base 64"),
        (document(data=..., data_base64="not base"), "data_base64 is not base 64"),
        (document(data=..., data_base64=5), "data_base64 is not base 64"),
        (document(data=..., data_base64="e30x", datacontenttype="application/json"), "its data is not JSON"),
        (b"[]", "not a JSON object"),
        (b"", "not a JSON object"),
        (b'{"specversion":"1.0",', "not a JSON object"),
        (b'{"specversion":"1.0","id":"\xff"}', "not UTF-8"),
        (document(data="\ud800"), "not a JSON object"),
        (document(data=...)[:-1] + b',"data":1e999}', "its data is not JSON"),
        (document(**{f"x{number}": "" for number in range(65)}), "65 extension attributes"),
    ],
)  # fmt: skip
def test_parse__what_is_not_a_cloud_event__is_refused_with_the_attribute_at_fault(body: bytes, said: str) -> None:
    assert said in refusal(lambda: events.parse(body))


def test_parse__data_nested_too_deep_for_a_reader__is_refused_when_it_comes_in() -> None:
    deep = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":' + b"[" * 300 + b"]" * 300 + b"}"

    assert "nested deeper" in refusal(lambda: events.parse(deep))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (replace(EVENT, data=float("nan")), "nan"),
        (replace(EVENT, data={"when": object()}), "object has no JSON form"),
        (replace(EVENT, time=datetime(2026, 1, 1)), "not a moment with a time zone"),  # noqa: DTZ001 - that is the point
        (replace(EVENT, extensions={"id": "x"}), "attribute name 'id'"),
        (replace(EVENT, id=""), "id is missing"),
        (replace(EVENT, source=""), "source is missing"),
    ],
)
def test_dump__an_event_that_cannot_be_written_faithfully__is_refused(event: Event, said: str) -> None:
    assert said in refusal(lambda: events.dump(event))


def test_dump__more_than_is_accepted__is_refused_on_the_way_out_and_in() -> None:
    large = replace(EVENT, data="x" * events.EVENT_BYTES_MAX)

    with pytest.raises(PayloadTooLargeError, match="1,000,000 are accepted"):
        events.dump(large)
    with pytest.raises(PayloadTooLargeError):
        events.parse(document(data="x" * events.EVENT_BYTES_MAX))
    with pytest.raises(PayloadTooLargeError):
        events.from_http({"ce-specversion": "1.0"}, b"x" * (events.EVENT_BYTES_MAX + 1))


# Batches.


def test_parse_batch__of_what_was_dumped__is_the_same_events() -> None:
    batch = [EVENT, Event(type="t", source="s", id="2", data=b"\x01", datacontenttype="image/png")]

    body = f"[{','.join(map(events.dump, batch))}]".encode()

    (first, second) = events.from_http({"Content-Type": events.BATCH_TYPE}, body)

    assert [plain(first), plain(second)] == batch
    assert events.parse_batch(b"[]") == []


def test_parse_batch__one_bad_event__refuses_the_batch_and_says_which() -> None:
    body = b"[" + document() + b"," + document(type=...) + b"]"

    assert "number 1: event '1': type is missing" in refusal(lambda: events.parse_batch(body))
    assert "not a JSON array" in refusal(lambda: events.parse_batch(document()))


def test_parse_batch__too_many_events__is_refused() -> None:
    with pytest.raises(PayloadTooLargeError, match="1001 events"):
        events.parse_batch(b"[" + b",".join([b"{}"] * 1001) + b"]")


# HTTP.


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "event",
    [
        replace(EVENT, datacontenttype="application/json"),
        Event(type="t", source="s", id="1"),
        Event(type="t", source="s", id="Euro € 😀 %25 \"q\"", subject="a b"),
        Event(type="t", source="s", id="1", data=b"\x00\xff", datacontenttype="image/png"),
        Event(type="t", source="s", id="1", data=[1], datacontenttype="application/vnd.shop+json; charset=utf-8"),
    ],
    ids=["full", "least", "escapes", "bytes", "JSON dialect"],
)  # fmt: skip
def test_from_http__of_what_to_http_made__is_the_same_event(event: Event, mode: Mode) -> None:
    headers, body = events.to_http(event, mode)

    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert [plain(read) for read in events.from_http(headers, body)] == [event]


def test_to_http__binary__puts_attributes_into_headers_and_data_into_the_body() -> None:
    headers, body = events.to_http(replace(EVENT, subject="Euro € 😀"))

    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": "A-1",
        "ce-source": "/shop/7",
        "ce-type": "order.created",
        "ce-time": "2026-01-31T12:00:00.250000Z",
        "ce-subject": "Euro%20%E2%82%AC%20%F0%9F%98%80",
        "ce-dataschema": "https://shop.example/order.json",
        "ce-traceparent": "00-ab-cd-01",
        "ce-partitionkey": "shop%207",
        "content-type": "application/json",
    }
    assert json.loads(body) == EVENT.data


def test_from_http__headers_in_any_case_quoted_or_escaped__are_understood() -> None:
    headers = {
        "CE-SpecVersion": "1.0",
        "Ce-Id": '"say \\"hi\\""',
        "ce-source": "/s",
        "CE-TYPE": "t",
        "ce-subject": "100%25 %E2%82%AC",
        "ce-datacontenttype": "text/ignored",
        "Content-Type": "application/json; charset=utf-8",
        "Host": "shop.example",
    }

    (event,) = events.from_http(headers, b'{"a": 1}')

    assert (event.id, event.subject) == ('say "hi"', "100% €")
    assert event.datacontenttype == "application/json; charset=utf-8"
    assert plain(event).data == {"a": 1}
    assert event.extensions == {}


def test_from_http__a_body_that_is_not_json__is_bytes() -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "text/csv"}

    (event,) = events.from_http(headers, b"a;b\n")

    assert event.data == b"a;b\n"
    assert events.load(events.dump(event)).data == b"a;b\n"


def test_to_http__text_of_another_type__is_the_body_itself() -> None:
    _, body = events.to_http(Event(type="t", source="s", id="1", data="é;b", datacontenttype="text/csv"))

    assert body == "é;b".encode()


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        ({}, b"{}", "neither a ce-specversion header nor content type"),
        ({"content-type": "application/cloudevents+avro"}, b"", "application/cloudevents+avro is not understood"),
        ({"ce-specversion": "0.3", "ce-id": "1", "ce-source": "s", "ce-type": "t"}, b"", "specversion '0.3'"),
        ({"ce-specversion": "1.0", "ce-source": "s", "ce-type": "t"}, b"", "id is missing"),
        ({"ce-specversion": "1.0", "ce-id": "%FF", "ce-source": "s", "ce-type": "t"}, b"", "header ce-id"),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-x_y": "1"}, b"", "'x_y'"),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-data": "1"}, b"", "'data'"),
        (
            {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "text/json"},
            b"{",
            "its data is not JSON",
        ),
    ],
)  # fmt: skip
def test_from_http__what_is_not_a_cloud_event__is_refused(headers: dict[str, str], body: bytes, said: str) -> None:
    assert said in refusal(lambda: events.from_http(headers, body))


# Data.


@dataclasses.dataclass
class Order:
    id: int
    lines: list[float | None]
    name: str = ""


@pytest.mark.parametrize("event", [EVENT, events.parse(events.dump(EVENT))], ids=["decoded", "raw"])
def test_data_as__a_type__is_that_type_however_the_data_is_held(event: Event) -> None:
    assert event.data_as(Order) == Order(17, [1, 2.5, None], "Žluťoučký")


def test_data_as__another_shape__is_refused_with_the_path() -> None:
    assert "$.id" in refusal(lambda: replace(EVENT, data={"id": "x", "lines": []}).data_as(Order))


def test_data_as__bytes__are_given_as_they_are() -> None:
    assert Event(type="t", data=b"\x00").data_as(bytes) == b"\x00"


_TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=40)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(id=_TEXT, subject=_TEXT, extension=_TEXT, data=_JSON, mode=st.sampled_from(Mode))
def test_from_http__any_text_and_any_json__comes_through(
    id: str, subject: str, extension: str, data: Any, mode: Mode
) -> None:
    event = Event(type="t", source="s", id=id, subject=subject, data=data, extensions={"ext": extension})

    (read,) = events.from_http(*events.to_http(event, mode))

    assert (read.id, read.subject, read.extensions) == (id, subject, {"ext": extension})
    assert plain(read).data == data
