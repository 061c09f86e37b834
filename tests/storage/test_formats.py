"""Files of other programs, read as experiences: what becomes of each kind, and that payloads stay the file's."""

import io
import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from relive.experience import Transition
from relive.storage.formats import FORMATS, Found, Ignored, Item, Problem, Source, SourceError, detect, read

TAU = Path(__file__).parents[1] / "data" / "tau_bench" / "gpt-4o-airline.json.zst"


def items(records: list[Any] | str, folder: Path, name: str | None = None) -> list[Item]:
    path = folder / "records"
    path.write_text(records if isinstance(records, str) else "\n".join(json.dumps(r) for r in records))
    with Source(path) as source:
        return list(read(source, name)[1])


def experiences(records: list[Any] | str, folder: Path) -> list[Transition]:
    found = items(records, folder)
    assert [i for i in found if isinstance(i, Problem)] == []
    return [i.transition for i in found if isinstance(i, Found)]


def problems(records: list[Any] | str, folder: Path, name: str | None = None) -> list[tuple[int, str]]:
    return [(i.line, i.reason) for i in items(records, folder, name) if isinstance(i, Problem)]


def value(raw: Any) -> Any:
    return None if raw is None else json.loads(bytes(raw))


CALL = {"id": "c1", "type": "function", "function": {"name": "buy", "arguments": '{"price": 1.10}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Buy tea."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
    {"role": "assistant", "content": "Bought."},
    {"role": "user", "content": "Thanks."},
]


# -- Relive JSONL -------------------------------------------------------------------------------------------------


def test_a_relive_line_needs_no_more_than_state_and_action(tmp_path: Path) -> None:
    [found] = items([{"state": "s", "action": "a"}], tmp_path)
    assert isinstance(found, Found)
    assert (value(found.transition.state), value(found.transition.action)) == ("s", "a")
    assert found.transition.reward is None
    assert found.transition.episode_id == found.uid.hex()
    assert found.priority is None


def test_every_field_of_a_relive_line_arrives(tmp_path: Path) -> None:
    given = Transition(
        state={"price": 1},
        action=[1, "two"],
        next_state="next",
        reward=0.5,
        truncated=True,
        outcome="success",
        agent="trader",
        step=3,
        group_id="g",
        tags=("x", "y"),
        policy="p",
        policy_version=2,
        cost=17,
        latency_ms=1.5,
        error="late",
        info={"route": "a"},
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    )
    [found] = experiences([json.loads(msgspec.json.encode(given.to_dict()))], tmp_path)
    payload = {name: value(getattr(found, name)) for name in ("state", "action", "next_state", "info")}
    assert msgspec.structs.replace(found, **payload) == given


def test_dsh_03_a_payload_keeps_its_bytes(tmp_path: Path) -> None:
    payload = '{"price": 1.10,"n":[1e400, 9007199254740993, ' + "7" * 400 + '],  "é":"\\u00e9"}'
    [found] = experiences(f'{{"action": 1, "state": {payload}}}', tmp_path)
    assert bytes(found.state).decode() == payload


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"state": 1}, "it has no action"),
        ({"state": 1, "action": 2, "mood": "good"}, "unknown field `mood`"),
        ({"state": 1, "action": 2, "step": -1}, "step"),
        ({"state": 1, "action": 2, "outcome": "won"}, "outcome"),
        ({"state": 1, "action": 2, "schema_version": 99}, "schema version 99, but this Relive knows versions up to"),
        ({"state": 1, "action": 2, "uid": "xyz"}, "its uid is 'xyz'; it must be 32 hexadecimal digits"),
        ({"state": 1, "action": 2, "priority": -1}, "its priority is -1"),
        (17, "it is no JSON object"),
    ],
)
def test_a_relive_line_that_cannot_be_taken_says_why_and_the_others_are_taken(
    line: Any, reason: str, tmp_path: Path
) -> None:
    good = {"state": 1, "action": 2}
    found = items([good, line, good], tmp_path, "relive")
    assert [type(i) for i in found] == [Found, Problem, Found]
    assert isinstance(found[1], Problem)
    assert found[1].line == 2
    assert reason in found[1].reason


def test_the_same_line_twice_is_two_experiences_and_the_same_two_in_every_import(tmp_path: Path) -> None:
    lines = [{"state": 1, "action": 2}] * 3
    first, second = items(lines, tmp_path), items(lines, tmp_path)
    uids = [i.uid for i in first if isinstance(i, Found)]
    assert len(set(uids)) == 3
    assert uids == [i.uid for i in second if isinstance(i, Found)]


def test_a_parent_id_of_another_store_is_left_out_and_said(tmp_path: Path) -> None:
    found = items([{"state": 1, "action": 2, "parent": 7}], tmp_path)
    assert [i.what for i in found if isinstance(i, Ignored)] == ["parent (an id of another store)"]
    assert [i.transition.parent for i in found if isinstance(i, Found)] == [None]


# -- conversations ------------------------------------------------------------------------------------------------


def test_a_conversation_becomes_one_experience_for_each_assistant_message(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "buy"}}]
    record = {"messages": MESSAGES, "tools": tools, "reward": 1, "model": "m-1", "agent": "shopper"}
    first, last = experiences([record], tmp_path)
    assert value(first.state) == {"messages": MESSAGES[:2], "tools": tools}
    assert value(first.action) == MESSAGES[2]
    assert value(first.next_state) == {"messages": [MESSAGES[3]]}
    assert value(last.state) == {"messages": MESSAGES[:4], "tools": tools}
    assert value(last.action) == MESSAGES[4]
    assert value(last.next_state) == {"messages": [MESSAGES[5]]}
    assert first.episode_id == last.episode_id
    assert [first.step, last.step] == [0, 1]
    assert [first.reward, last.reward] == [None, 1.0]
    assert [first.terminated, last.terminated] == [False, True]
    assert {first.policy, last.policy} == {"m-1"}
    assert {first.agent, last.agent} == {"shopper"}


def test_nothing_follows_the_last_message_of_a_conversation_that_the_assistant_ended(tmp_path: Path) -> None:
    assert experiences([{"messages": MESSAGES[:5]}], tmp_path)[-1].next_state is None


def test_what_the_agent_did_not_see_is_not_put_into_the_state(tmp_path: Path) -> None:
    found = items([{"messages": MESSAGES, "reference_answer": "secret", "metadata": {}}], tmp_path)
    assert {i.what for i in found if isinstance(i, Ignored)} == {"field reference_answer", "field metadata"}
    assert all(b"secret" not in bytes(i.transition.state) for i in found if isinstance(i, Found))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no list of messages"),
        ([{"role": "user", "content": "hi"}], "no message is the assistant's"),
        ([{"role": "alien", "content": "hi"}], "message 1 has no role"),
        (["hi"], "message 1 has no role"),
    ],
)
def test_a_conversation_without_something_an_agent_did_is_refused(
    messages: list[Any], reason: str, tmp_path: Path
) -> None:
    [(line, said)] = problems([{"messages": messages}], tmp_path, "openai")
    assert line == 1
    assert reason in said


def test_two_equal_conversations_of_one_file_are_two_episodes(tmp_path: Path) -> None:
    found = experiences([{"messages": MESSAGES}, {"messages": MESSAGES}], tmp_path)
    assert len({e.episode_id for e in found}) == 2


def test_a_file_without_times_tells_of_when_it_was_changed(tmp_path: Path) -> None:
    import os

    path = tmp_path / "old"
    path.write_text(json.dumps({"messages": MESSAGES}))
    os.utime(path, (1_600_000_000, 1_600_000_000))
    with Source(path) as source:
        found = list(read(source)[1])
    assert {i.transition.created_at for i in found if isinstance(i, Found)} == {
        datetime.fromtimestamp(1_600_000_000, UTC)
    }


# -- ShareGPT -----------------------------------------------------------------------------------------------------


def test_sharegpt_turns_become_chat_messages(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "Buy tea.\u2028Now."},
        {"from": "function_call", "value": '{"name": "buy", "arguments": {"price": 1.10, "n": 1e400}}'},
        {"from": "observation", "value": "done"},
        {"from": "gpt", "value": "Bought."},
    ]
    record = {"conversations": turns, "system": "Be brief.", "tools": '[{"name": "buy", "most": 1.50}]'}
    found = experiences(json.dumps([record]), tmp_path)
    first, last = found
    assert value(first.state) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Buy tea.\u2028Now."}],
        "tools": [{"name": "buy", "most": 1.5}],
    }
    assert b'"most": 1.50' in bytes(first.state)
    call = value(first.action)["tool_calls"][0]
    assert call["function"] == {"name": "buy", "arguments": '{"price": 1.10, "n": 1e400}'}
    assert value(first.next_state) == {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": "done"}]}
    assert value(last.action) == {"role": "assistant", "content": "Bought."}


def test_a_sharegpt_turn_of_an_unknown_speaker_is_refused(tmp_path: Path) -> None:
    [(_, reason)] = problems([{"conversations": [{"from": "ghost", "value": "boo"}]}], tmp_path)
    assert reason.startswith("turn 1 is not")


# -- tau-bench ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trials() -> list[dict[str, Any]]:
    with TAU.open("rb") as file:
        return json.load(io.BytesIO(zstandard.ZstdDecompressor().stream_reader(file).read()))


@pytest.fixture(scope="module")
def episodes() -> list[list[Transition]]:
    found: dict[str, list[Transition]] = defaultdict(list)
    with Source(TAU) as source:
        name, stream = read(source)
        assert name == "tau-bench"
        for item in stream:
            assert isinstance(item, Found)
            found[item.transition.episode_id].append(item.transition)
    return list(found.values())


def test_the_200_trials_of_tau_bench_are_84_successes_and_116_failures(episodes: list[list[Transition]]) -> None:
    assert len(episodes) == 200
    assert Counter(steps[-1].outcome for steps in episodes) == {"success": 84, "failure": 116}
    assert Counter(steps[-1].reward for steps in episodes) == {1.0: 84, 0.0: 116}
    assert all(len({step.outcome for step in steps}) == 1 for steps in episodes)
    assert all(step.reward is None for steps in episodes for step in steps[:-1])
    groups = Counter(steps[0].group_id for steps in episodes)
    assert set(groups.values()) == {4}
    assert len(groups) == 50


def test_each_trial_of_tau_bench_can_be_put_together_again(
    episodes: list[list[Transition]], trials: list[dict[str, Any]]
) -> None:
    for steps, trial in zip(episodes, trials, strict=True):
        last = steps[-1]
        after = value(last.next_state)["messages"] if last.next_state is not None else []
        assert [*value(last.state)["messages"], value(last.action), *after] == trial["traj"]


def test_every_tool_call_of_tau_bench_is_joined_to_its_result(episodes: list[list[Transition]]) -> None:
    calls = 0
    for step in (step for steps in episodes for step in steps):
        for call in value(step.action).get("tool_calls") or []:
            calls += 1
            [result] = value(step.next_state)["messages"]
            assert result["role"] == "tool"
            assert (result["tool_call_id"], result["name"]) == (call["id"], call["function"]["name"])
    assert calls == 1164  # as many as the file has messages of the role "tool"


def test_the_payloads_of_tau_bench_are_the_bytes_of_the_file(episodes: list[list[Transition]]) -> None:
    with TAU.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read()
    text = b" ".join(line.strip() for line in text.split(b"\n"))  # the file is indented; a record is one line
    for steps in episodes[::20]:
        for step in steps:
            assert bytes(step.action) in text
            for message in msgspec.json.decode(step.state, type=dict[str, list[msgspec.Raw]])["messages"]:
                assert bytes(message) in text


# -- detection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"state": 1, "action": 2}, "relive"),
        ({"messages": MESSAGES}, "openai"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "sharegpt"),
        ({"task_id": 1, "traj": MESSAGES, "reward": 1}, "tau-bench"),
        ({"resourceSpans": []}, "otel"),
    ],
)
def test_a_format_is_known_by_its_content(record: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    for content in (json.dumps(record), "oops\n" + json.dumps(record), json.dumps([record], indent=1)):
        path.write_text(content)
        with Source(path) as source:
            found = detect(source)
        assert found is not None
        assert found.name == name


def test_an_unknown_format_is_told_what_formats_look_like(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="line 1 has the fields prompt, completion") as refused:
        items([{"prompt": "x", "completion": "y"}], tmp_path)
    for known in FORMATS.values():
        assert known.example in str(refused.value)


def test_a_format_can_be_forced_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    assert problems([{"messages": MESSAGES}], tmp_path, "relive") == [(1, "it has no state and no action")]
    with pytest.raises(SourceError, match="no format 'csv'; known are relive, openai"):
        items([{"messages": MESSAGES}], tmp_path, "csv")


def test_an_empty_file_holds_nothing_and_a_file_of_nonsense_is_refused_or_told_line_by_line(tmp_path: Path) -> None:
    assert items("", tmp_path) == []
    assert items("\n\n", tmp_path) == []
    with pytest.raises(SourceError, match="no line that was looked at is a JSON object"):
        items("oops\nagain\n", tmp_path)
    assert [line for line, _ in problems("oops\nagain\n", tmp_path, "relive")] == [1, 2]


def test_cli_03_four_records_are_read_and_three_are_named_with_line_and_reason(tmp_path: Path) -> None:
    record = '{"state": "%s", "action": 1, "reward": %s}'
    lines = [record % (f"s{n}", 1) for n in range(3)]
    lines += ["", "", record % ("one\u2028two\u0085three", 1), record % ("s", "NaN"), record % ('s", "state": "t', 1)]
    content = "\r\n".join([*lines, '{"state": "cut'])
    expected = None
    for text in (content, "\ufeff" + content):
        found = items(text, tmp_path)
        assert sum(isinstance(i, Found) for i in found) == 4
        assert value([i for i in found if isinstance(i, Found)][3].transition.state) == "one\u2028two\u0085three"
        said = [(i.line, i.reason) for i in found if isinstance(i, Problem)]
        assert [line for line, _ in said] == [7, 8, 9]
        for (_, reason), part in zip(said, ("NaN is not JSON", '"state" occurs twice', "cut off"), strict=True):
            assert part in reason
        assert expected in (None, [str(i) for i in found if not isinstance(i, Found)])
        expected = [str(i) for i in found if not isinstance(i, Found)]
