"""A choice among allowed actions: how it is asked for, read back, and shown."""

from collections import Counter
from typing import Any

import pytest
from learner_calls import ACTIONS, PARAMS, QUESTION, Parrot, last

from relive import Memory
from relive.learner import Agent
from relive.learner.choice import choice_format, choice_text, read_choice
from relive.llm import Upstream


def test_the_model_can_only_choose_an_allowed_action(memory: Memory, model: Upstream) -> None:
    agent = Agent(model, memory=memory, **PARAMS)
    chosen = Counter(agent.ask([{"role": "user", "content": text}], actions=ACTIONS).action for text in ("a", "b", "c"))
    assert set(chosen) <= set(ACTIONS)
    assert last(memory).action in ACTIONS


def test_a_choice_is_shown_in_the_form_in_which_it_is_asked_for(memory: Memory) -> None:
    parrot = Parrot()
    agent = Agent(parrot, memory=memory)
    answer = agent.ask(QUESTION, actions=ACTIONS)
    assert answer.action == "block"
    answer.feedback(1.0)
    agent.ask(QUESTION, actions=ACTIONS)
    assert parrot.seen[1][2] == {"role": "assistant", "content": '{"action": "block"}'}
    assert parrot.requests[1]["response_format"] == choice_format("action", ACTIONS)


def test_what_failed_in_similar_situations_cannot_be_chosen(memory: Memory) -> None:
    parrot = Parrot()
    agent = Agent(parrot, memory=memory)
    agent.ask(QUESTION, actions=ACTIONS).feedback(0.0)
    answer = agent.ask(QUESTION, actions=ACTIONS)
    schema = parrot.requests[1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == ["refund", "close"]
    assert answer.action is None  # the parrot says "block" all the same
    assert answer.transition.error == "The model chose none of the allowed actions."


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        (["block", "refund"], "string"),
        ([0, 1], "integer"),
        ([0.5, 1], "number"),
        ([True, False], "boolean"),
        (["block", 1], None),
        ([True, 1], None),
        ([{"x": 1}, {"x": 2}], None),
    ],
)
def test_a_strict_schema_names_the_type_of_its_values_and_other_values_are_not_asked_for_strictly(
    actions: list[Any], kind: str | None
) -> None:
    asked = choice_format("action", actions)["json_schema"]
    assert asked["strict"] is (kind is not None)
    assert asked["schema"] == {
        "type": "object",
        "properties": {"action": {"enum": actions} if kind is None else {"type": kind, "enum": actions}},
        "required": ["action"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"a": "card"}', "card"),
        ('"card"', "card"),
        ('{"a": 2}', 2),
        ('{"a": {"x": 1}}', {"x": 1}),
        ("I would say card_lost.", "card_lost"),
        ("card or refund", None),
        ('```json\n{"a": 2}\n```', 2),
        ('```\n{"a": "card"}\n```\n', "card"),
        ("the discarded refunds", None),
        ("I do not know.", None),
        ("No idea, I cannot tell.", None),
        ("No.", "no"),
        ("This is not about a card_lost.", None),
        ("I don't think that it is a refund.", None),
        ("返金ではない", None),
        ("It is a refund-like thing.", None),
        ('<think>card or refund? refund.</think>\n{"a": "card"}', "card"),
        ("So card.</think>refund", "refund"),
        ("それは返金です", "返金"),
        ("[" * 100_000, None),
        ('{"a": "other"}', None),
        ('{"b": "card"}', None),
        ('{"a": true}', None),
        ("", None),
    ],
)
def test_a_choice_is_read_back(text: str, action: Any) -> None:
    actions = ["card", "card_lost", "refund", "no", "返金", 1, 2, {"x": 1}]
    assert read_choice(text, "a", actions) == action
    if action is not None:
        assert read_choice(choice_text("a", action), "a", actions) == action


def test_what_is_no_choice_among_the_actions_is_not_shown_as_one(memory: Memory) -> None:
    parrot = Parrot("I blocked it.")
    agent = Agent(parrot, memory=memory)
    agent.ask(QUESTION).feedback(1.0)
    assert agent.ask(QUESTION, actions=ACTIONS).demonstrations == ()
    assert len(agent.ask(QUESTION).demonstrations) == 1
