"""Every JSON value and every token trace survives the way to disk and back, as `codec` says."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import TokenTrace, Transition
from relive.errors import InvalidExperienceError
from relive.storage import SqliteStorage
from relive.storage._text import is_plain
from relive.storage.codec import (
    MOST_NESTED,
    Compressor,
    Decompressor,
    checked_json,
    clean_text,
    decode_json,
    decode_trace,
    encode_json,
    encode_payload,
    encode_trace,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(JSON)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    text = encode_json(value)
    assert decode_json(text) == value
    assert json.loads(text) == value


@given(JSON, st.booleans())
def test_compressed_bodies_come_back_byte_for_byte(value: Any, trained: bool) -> None:
    dictionary = (16, b"a dictionary may be any bytes that payloads repeat" * 10) if trained else None
    decompress = Decompressor()
    if dictionary is not None:
        decompress.learn(*dictionary)
    text = encode_json([value, "x" * 200])
    assert decompress(*Compressor(dictionary)(text)) == text


@given(st.text(st.characters()))
def test_any_text_becomes_text_that_utf8_can_hold_and_stays_so(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert cleaned == text


@pytest.mark.parametrize("digits", [65, 400, 4300, 5000])
def test_long_integers_keep_every_digit(digits: int) -> None:
    value = {"n": [10**digits + 7, -(10**digits) - 9]}
    assert decode_json(encode_json(value)) == value


def test_raw_json_text_is_kept_byte_for_byte() -> None:
    raw = b'{"price": 1.10,  "huge":1e400, "half":"\\ud83d", "big":' + b"9" * 400 + b"}"
    assert encode_json({"state": msgspec.Raw(raw)}) == b'{"state":' + raw + b"}"
    assert decode_json(raw)["half"] == "\ud83d"
    assert decode_json(raw)["big"] == int("9" * 400)


def test_what_is_not_json_is_turned_into_it_as_documented() -> None:
    value = {1: (2, 3), "array": np.arange(3), "float": np.float32(0.5), "nan": float("nan"), "bytes": b"ab"}
    assert decode_json(encode_json(value)) == {
        "1": [2, 3],
        "array": [0, 1, 2],
        "float": 0.5,
        "nan": None,
        "bytes": "YWI=",
    }


def test_what_cannot_be_json_is_refused_by_name() -> None:
    with pytest.raises(InvalidExperienceError, match="object is not a JSON value"):
        encode_json({"a": object()})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidExperienceError, match="nested too deeply"):
        encode_json(deep)
    while deep:  # taken apart by hand: the interpreter, too, ends at some depth
        deep = deep.pop()


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"}": value}
    return value


def test_what_is_stored_can_be_read_on_any_stack() -> None:
    wide = {"beside": [[]] * 1000, "text": "[" * 1000 + '\\"' + "{" * 1000}
    deepest = nested(MOST_NESTED)
    assert decode_json(encode_payload(deepest, "state")) == deepest
    assert decode_json(encode_payload([wide] * 3, "state")) == [wide] * 3
    for deep in (nested(MOST_NESTED + 1), [wide, nested(MOST_NESTED)], nested(1000)):
        with pytest.raises(InvalidExperienceError, match="state is nested too deeply"):
            encode_payload(deep, "state")
    for levels in (MOST_NESTED + 1, 100_000):
        with pytest.raises(InvalidExperienceError, match="state is nested too deeply"):
            encode_payload(msgspec.Raw(b"[" * levels + b"]" * levels), "state")


@pytest.mark.parametrize(
    "text", [b"", b"1,2", b'{"a":', b"NaN", b'1},{"', b'"\xff"', b'"\x0b"', b'"\\x"', b"01", b"[1,]", b"'a'"]
)
def test_text_that_is_no_json_is_refused_by_the_name_of_its_field(text: bytes, store: SqliteStorage) -> None:
    for raw in (msgspec.Raw(text), {"inner": {"a": msgspec.Raw(text), "b": 0}}):
        for fields in ({"action": raw}, {"next_state": raw}, {"info": raw}, {"state": raw}):
            with pytest.raises(InvalidExperienceError, match=f"^{next(iter(fields))} is no JSON text: "):
                store.append([Transition(**{"state": 0, "action": 0, **fields})])
    assert len(store) == 0


def test_sto_09_the_escape_of_half_a_pair_in_json_text_becomes_the_replacement_character() -> None:
    text = msgspec.Raw(b'{"half":"\\ud83d","pair":"\\ud83d\\ude00","no":"\\\\ud83d","n":1e400}')
    assert encode_payload(text, "state") == b'{"half":"\\ufffd","pair":"\\ud83d\\ude00","no":"\\\\ud83d","n":1e400}'


def traces() -> st.SearchStrategy[TokenTrace]:
    int32 = st.integers(-(2**31), 2**31 - 1)

    def build(length: int) -> st.SearchStrategy[TokenTrace]:
        return st.builds(
            TokenTrace,
            token_ids=st.lists(int32, min_size=length, max_size=length),
            mask=st.lists(st.integers(0, 1), min_size=length, max_size=length),
            logprobs=st.none() | st.lists(st.floats(-1e3, 0, width=32), min_size=length, max_size=length),
            versions=st.none() | st.lists(st.sampled_from([-(2**31), 3, 4]), min_size=length, max_size=length),
            temperature=st.none() | st.floats(0, 2),
            top_p=st.none() | st.floats(0, 1),
            tokenizer=st.none() | TEXT,
        )

    return st.integers(0, 30).flatmap(build)


@given(traces())
def test_token_traces_come_back_as_they_were(trace: TokenTrace) -> None:
    assert decode_trace(encode_trace(trace)) == trace


def test_versions_take_eight_bytes_a_run() -> None:
    length = 1000
    trace = TokenTrace(token_ids=range(length), mask=[1] * length, versions=[7] * 600 + [8] * 400)
    checksum = 4
    assert len(encode_trace(trace).body) == 5 * length + 2 * 8 + checksum


def test_sto_09_no_text_loses_its_record(store: SqliteStorage) -> None:
    half, pair = "a\udc81b", "\ud83d\ude00"
    emoji = "😀" * (1 << 18)  # a megabyte in UTF-8
    texts = [half, "first half only: \ud83d", pair, "nul \x00 kept", emoji, "\u2028\x85\ufeff"]
    expected = ["a\ufffdb", "first half only: \ufffd", "😀", "nul \x00 kept", emoji, "\u2028\x85\ufeff"]
    ids = store.append([
        Transition(state={text: text}, action=text, agent=text, tags=(text,), error=text, episode_id=text)
        for text in texts
    ])  # fmt: skip
    for number, text in zip(ids, expected, strict=True):
        [found] = store.get([number or 0])
        assert found is not None
        assert (found.state, found.action) == ({text: text}, text)
        assert (found.agent, found.tags, found.error, found.episode_id) == (text, (text,), text, text)
        [stored] = store.read([number or 0])
        assert stored is not None
        assert json.loads(stored.json().decode("utf-8"))["action"] == text
    assert [row.id for row in store.query(agent=half)] == [ids[0]]
    assert [row.id for row in store.query(tag="nul \x00 kept")] == [ids[3]]
    assert [row.id for row in store.query(episode_id=emoji)] == [ids[4]]
    store.search(half)
    line = b'{"state": "\\ud83d", "action": null}'  # the escape of a half, as an outside file may hold it
    [number] = store.append([Transition(state=msgspec.Raw(b'"\\ud83d"'), action=json.loads(line)["state"])])
    [found] = store.get([number or 0])
    assert found is not None
    assert found.action == "\ufffd"


def test_dsh_03_digits_are_the_same_in_the_store(store: SqliteStorage) -> None:
    arguments = (
        '{"id": 2512292042121000001, "b": 9007199254740993, "price": 1.10, "huge": 1e400, "n": ' + "9" * 400 + "}"
    )
    [number] = store.append([
        Transition(
            state={"id": 2512292042121000001, "b": 9007199254740993, "n": int("9" * 400)},
            action={"tool_calls": [{"function": {"arguments": arguments}}]},
        )
    ])  # fmt: skip
    [found] = store.get([number or 0])
    assert found is not None
    assert found.action["tool_calls"][0]["function"]["arguments"] == arguments
    assert found.state == {"id": 2512292042121000001, "b": 9007199254740993, "n": int("9" * 400)}


class Words(dict[str, Any]):
    """Not exactly a dict: what it gives when it is written may be anything."""


def chain(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [[value], (value,), {"in": value}][level % 3]
    return value


@given(JSON)
def test_values_that_are_plain_json_need_no_second_look(value: Any) -> None:
    assert is_plain(value, MOST_NESTED)
    written = encode_payload(value, "state")
    assert checked_json(written, "state") == written


@pytest.mark.parametrize(
    "value",
    [msgspec.Raw(b"1"), {"in": [msgspec.Raw(b"1},{")]}, Words(a=1), {1: "one"}, np.float64(1.0), [b"bytes"], {1, 2}],
)
def test_what_is_not_plain_json_gets_a_second_look(value: Any) -> None:
    assert not is_plain(value, MOST_NESTED)


def test_what_is_nested_as_deep_as_may_be_is_plain_and_one_level_more_is_not() -> None:
    assert is_plain(chain(MOST_NESTED), MOST_NESTED)
    assert not is_plain(chain(MOST_NESTED + 1), MOST_NESTED)
    assert encode_payload(chain(MOST_NESTED), "state")
    with pytest.raises(InvalidExperienceError, match="state is nested too deeply"):
        encode_payload(chain(MOST_NESTED + 1), "state")
