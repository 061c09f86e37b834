"""Replies of reflecting models, as they really come: what is certain is taken, and nothing else."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.playbook.lesson import Add, Edit, Merge, Retire, Source, Vote
from relive.reflect.lenient import values
from relive.reflect.replies import Answer, UnreadableReplyError, deltas, read, response_format

REPLIES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "malformed_replies.jsonl").read_text().splitlines()
]


def lessons(reply: str) -> list[str] | None:
    """What the new lessons of a reply say; ``None``: it cannot be read."""
    try:
        proposed = deltas(read(reply), agent=None, evidence={}, also=(), shown=frozenset())
    except UnreadableReplyError:
        return None
    return [delta.text.do for delta in proposed.deltas if isinstance(delta, Add)]


def test_of_a_hundred_malformed_replies_nineteen_in_twenty_are_recovered_and_the_rest_are_said_to_be_unreadable() -> (
    None
):
    assert len(REPLIES) >= 100
    wrong = [one["kind"] for one in REPLIES if lessons(one["reply"]) != one["do"]]
    assert not wrong
    assert sum(one["do"] is not None for one in REPLIES) >= 0.95 * len(REPLIES)


def test_ref_01_a_lesson_is_found_whatever_talk_and_fences_are_around_it() -> None:
    lesson = {"when": "a trip is booked", "do": "Confirm the date first"}
    tricky = {"do": "Put code into ```python\nx = {}\n``` blocks"}
    assert lessons(f"The episodes {{about travel}} differ. {json.dumps({'lessons': [lesson]})}") == [lesson["do"]]
    assert lessons(f"This is what I see.\n```json\n{json.dumps({'lessons': [lesson]}, indent=1)}\n```") == [
        lesson["do"]
    ]
    assert lessons(json.dumps({"lessons": [tricky]})) == ["Put code into ```python x = {} ``` blocks"]
    assert lessons("```json\n[]\n```") == []
    with pytest.raises(UnreadableReplyError):
        read("I see no pattern here.")


def test_ref_01_a_megabyte_of_open_braces_is_given_up_on() -> None:
    began = time.process_time()
    for text in ("{" * 1_000_000, "[" * 1_000_000, '{"a":' * 200_000, "[/*" * 300_000, "[1," * 300_000):
        assert lessons(text) is None
    assert time.process_time() - began < 60, "the time must not grow with the square of the length"


@given(st.text(alphabet="{}[]\"'“`:,;/*\\ \nadochnge01-<>", max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    list(values(text))
    lessons(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=8), JSON, max_size=4), st.booleans())
def test_strict_json_is_read_as_every_parser_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    if not any(0xD800 <= ord(c) < 0xE000 for c in text):
        assert next(values(text)) == json.loads(text)


def test_an_object_without_its_end_is_no_lesson() -> None:
    whole = '{"changes": [{"change": "add", "do": "Look it up", "when": "asked"}, {"change": "add", "do": "Confirm it"'
    assert lessons(whole) == ["Look it up"]
    for end in range(len(whole)):
        assert lessons(whole[:end]) in (None, ["Look it up"])


SHOWN = frozenset({3, 4})
EVIDENCE = {1: (Source(ref="experience:7", experience_id=7),), 2: (Source(ref="experience:9", experience_id=9),)}
RECORD = Source(ref="experience:20", experience_id=20)


def proposed(*changes: dict[str, Any]) -> Any:
    return deltas(Answer(changes), agent="support", evidence=EVIDENCE, also=(RECORD,), shown=SHOWN)


def test_changes_become_typed_and_name_only_what_was_shown() -> None:
    found = proposed(
        {"change": "add", "do": "Look it up", "evidence": ["episode 1", 2, 99]},
        {"change": "edit", "lesson": "lesson 3", "do": "Look it up first"},
        {"change": "merge", "lesson": 3, "other": 4},
        {"change": "vote", "lesson": 4, "up": False, "evidence": [1]},
        {"change": "retire", "lesson": "#4", "reason": "It is about one case."},
    )
    assert not found.problems
    add, edit, merge, vote, retire = found.deltas
    assert isinstance(add, Add)
    assert (add.agent, add.origin) == ("support", "model")
    assert [source.experience_id for source in add.sources] == [7, 9, 20]
    assert isinstance(edit, Edit)
    assert (edit.lesson, edit.text.do) == (3, "Look it up first")
    assert isinstance(merge, Merge)
    assert (merge.lesson, merge.other) == (3, 4)
    assert isinstance(vote, Vote)
    assert (vote.lesson, vote.up, vote.source.experience_id) == (4, False, 7)
    assert isinstance(retire, Retire)
    assert retire.reason == "It is about one case."


def test_what_may_not_be_proposed_is_left_out_and_said() -> None:
    found = proposed(
        {"change": "approve", "lesson": 3, "do": "x"},
        {"change": "retire", "lesson": 12},
        {"change": "edit", "lesson": 3, "do": ""},
        {"change": "vote", "lesson": 3, "evidence": [99]},
        {"change": "add", "do": ""},
    )
    assert found.deltas == ()
    assert len(found.problems) == 5
    assert "'approve' is none of add, edit, merge, vote, retire" in found.problems[0]
    assert "'12' is no lesson that was shown" in found.problems[1]


def test_the_schema_holds_strict_endpoints_and_allows_every_change() -> None:
    schema = response_format()["json_schema"]["schema"]
    change = schema["properties"]["changes"]["items"]
    assert change["properties"]["change"]["enum"] == ["add", "edit", "merge", "vote", "retire"]
    for one in (schema, change):
        assert set(one["required"]) == set(one["properties"]), "strict endpoints want every field to be required"
        assert one["additionalProperties"] is False
