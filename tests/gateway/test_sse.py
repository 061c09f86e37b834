"""Server-sent events: however the bytes are cut, the same events come out, and no byte is lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.gateway import sse
from relive.gateway.sse import Event, EventReader


def read(stream: bytes, cuts: list[int]) -> tuple[list[Event], bytes]:
    """The events of a stream fed in pieces cut at these places, and the bytes of all of them and of the rest."""
    reader, events = EventReader(), []
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        events += reader.feed(stream[start:end])
    rest = reader.rest
    return events, b"".join(event.raw for event in events) + rest


def slow_reference(stream: bytes) -> list[tuple[bytes, bytes | None]]:
    """The events by the standard's own words, one character at a time, for whole streams only."""
    lines, line, at = [], b"", 0
    while at < len(stream):
        character = stream[at : at + 1]
        if character in (b"\r", b"\n"):
            at += 2 if stream[at : at + 2] == b"\r\n" else 1
            lines.append(line)
            line = b""
        else:
            line += character
            at += 1
    events: list[tuple[bytes, bytes | None]] = []
    name, data, empty = b"", [], True
    for line in lines:
        if line:
            empty = False
        elif not empty:
            events.append((name, b"\n".join(data) if data else None))
            name, data, empty = b"", [], True
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"event":
            name = value
        elif field == b"data":
            data.append(value)
    return events


LINES = st.sampled_from(
    [b"data: {}", b"data:{}", b"data", b"data: ", b"event: ping", b": comment", b"id: 7", "data: für 🚀".encode(), b"x"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=4), max_size=5),
    ENDS,
    st.lists(st.integers(min_value=0, max_value=500), max_size=8),
)
def test_events_are_those_of_the_standard_wherever_the_bytes_are_cut(
    groups: list[list[bytes]], end: bytes, cuts: list[int]
) -> None:
    stream = b"".join(end.join(lines) + end + end for lines in groups)
    events, everything = read(stream, cuts)
    assert everything == stream
    expected = slow_reference(stream)
    found = [(event.name, event.data) for event in events]
    if end == b"\r":  # its last event may still wait for the second half of a CRLF
        assert found in (expected, expected[:-1])
    else:
        assert found == expected


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=6))
def test_no_byte_is_lost_or_changed_whatever_the_stream(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts)[1] == stream


def test_a_multi_byte_character_cut_in_half_stays_whole() -> None:
    stream = 'data: {"a": "für 🚀"}\n\n'.encode()
    for cut in range(len(stream)):
        (event,), _ = read(stream, [cut])
        assert event.data == '{"a": "für 🚀"}'.encode()


def test_data_over_several_lines_is_joined() -> None:
    events, _ = read(b"event: delta\ndata: {\ndata: }\n\n", [])
    assert events == [Event(b"delta", b"{\n}", b"event: delta\ndata: {\ndata: }\n\n")]


def test_a_byte_order_mark_at_the_start_is_no_part_of_a_field() -> None:
    events, everything = read(b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [1, 2])
    assert [event.data for event in events] == [b"1", b"2"]
    assert everything.startswith(b"\xef\xbb\xbf")


def test_an_event_without_its_empty_line_counts_at_the_end_of_the_stream() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n\ndata: [DONE]") == [Event(b"", b"1", b"data: 1\n\n")]
    assert reader.close() == [Event(b"", b"[DONE]", b"data: [DONE]")]
    assert reader.close() == []
    reader.feed(b"\n")
    assert reader.close() == []


def test_a_stream_that_never_ends_an_event_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LARGEST_EVENT", 100)
    reader = EventReader()
    with pytest.raises(ValueError, match="No event ends"):
        reader.feed(b"x" * 101)
