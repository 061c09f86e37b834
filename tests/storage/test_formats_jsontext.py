"""What one record may hold, what is refused, and what the refusal says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.storage.formats import jsontext
from relive.storage.formats.jsontext import BadRecordError


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_through_untouched_escaped_or_not(text: str) -> None:
    for escaped in (True, False):
        given = json.dumps({"a": text}, ensure_ascii=escaped).encode()
        assert jsontext.read(given) == (given, {"a": text})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'{"reward": NaN}', "NaN is not JSON; write null for a number that is not known"),
        (b'{"reward": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" occurs twice in one object'),
        (b'{"state": "abc', "cut off after 14 bytes"),
        (b'{"state": [1, 2', "cut off"),
        (b'{"state": tru', "cut off"),
        (b'{"state": {"a": 1}', "cut off"),
        (b'{"state": 1,}', "not valid JSON"),
        (b"{'state': 1}", "not valid JSON"),
        (b'{"state": 1} {"state": 2}', "not valid JSON: extra data at character 14"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 8"),
        (b'{"a": "\x01"}', "not valid JSON: invalid control character"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
def test_cli_03_a_refusal_says_why(record: bytes, reason: str) -> None:
    with pytest.raises(BadRecordError) as refused:
        jsontext.read(record)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "number", ["1.10", "1e400", "-0", "1E5", "2512292042121000001", "9007199254740993", "7" * 400, "7" * 5000]
)
def test_dsh_03_the_digits_of_a_number_are_not_touched(number: str) -> None:
    record = f'{{"price": {number}, "text": "{number}"}}'.encode()
    assert jsontext.read(record).text == record


def test_sto_09_a_lone_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    text, value = jsontext.read(rb'{"a": "x\ud83dy", "b": "\udc81", "pair": "\ud83d\ude00", "no": "\\ud83d"}')
    assert value == {"a": "x\ufffdy", "b": "\ufffd", "pair": "\U0001f600", "no": "\\ud83d"}
    assert text == rb'{"a": "x\ufffdy", "b": "\ufffd", "pair": "\ud83d\ude00", "no": "\\ud83d"}'


def test_sto_09_a_nul_and_a_megabyte_of_emoji_are_kept() -> None:
    record = b'{"nul": "a\\u0000b", "emoji": "%s"}' % ("\U0001f600".encode() * 250_000)
    text, value = jsontext.read(record)
    assert (text, value["nul"], len(value["emoji"])) == (record, "a\x00b", 250_000)


def test_line_breaks_between_tokens_go_and_nothing_else_does() -> None:
    assert jsontext.read(b'{\r\n  "a":\n 1.10,\n\n "b" : "  two  "}\n').text == b'{ "a": 1.10, "b" : "  two  "}'


def test_a_payload_may_repeat_keys_and_nothing_else_may() -> None:
    payload = frozenset(["state"])
    record = b'{"state": {"a": 1, "a": 2}, "feedback": [{"key": "k"}], "tags": []}'
    assert jsontext.read(record, payload) == (record, {"state": None, "feedback": [{"key": "k"}], "tags": []})
    for refused in (
        b'{"state": 1, "state": {"a": 1, "a": 2}}',
        b'{"state": {"a": 1, "a": 2}, "feedback": [{"key": "k", "key": "l"}]}',
        b'[{"state": {"a": 1, "a": 2}}]',
    ):
        with pytest.raises(BadRecordError, match="occurs twice in one object"):
            jsontext.read(refused, payload)
