"""The records: what is accepted, what is refused and how the refusal reads."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from relive import Feedback, TokenTrace, Transition, Usage
from relive.errors import InvalidExperienceError


def test_a_transition_needs_only_state_and_action() -> None:
    transition = Transition(state="hello", action="hi")
    assert transition.reward is None
    assert transition.outcome == "unknown"
    assert transition.cost is None
    assert transition.created_at.tzinfo is UTC


def test_each_transition_is_an_episode_of_its_own_unless_told_otherwise() -> None:
    assert Transition(state=1, action=2).episode_id != Transition(state=1, action=2).episode_id


def test_a_record_survives_the_way_through_json() -> None:
    trace = TokenTrace(token_ids=[1, 2, 3], mask=[0, 1, 1], logprobs=[0.0, -0.5, -1.25], versions=[7, 7, 8])
    before = Transition(
        state={"messages": [{"role": "user", "content": "é 中"}]},
        action={"n": 2512292042121000001},
        reward=0.5,
        terminated=True,
        outcome="success",
        tags=("a", "b"),
        usage=Usage(input_tokens=10, output_tokens=3),
        cost=1_234_567,
        created_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        tokens=trace,
    )
    after = Transition.from_dict(json.loads(json.dumps(before.to_dict())))
    assert after == before
    assert after.tokens is not None
    assert after.tokens.token_ids.dtype == np.int32
    assert after.tokens.logprobs is not None
    assert after.tokens.logprobs.dtype == np.float32


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"state": 1}, "action"),
        ({"state": 1, "action": 2, "reward": "high"}, "reward"),
        ({"state": 1, "action": 2, "reward": float("nan")}, "reward"),
        ({"state": 1, "action": 2, "reward": float("inf")}, "reward"),
        ({"state": 1, "action": 2, "outcome": "won"}, "outcome"),
        ({"state": 1, "action": 2, "step": -1}, "step"),
        ({"state": 1, "action": 2, "cost": 0.5}, "cost"),
        ({"state": 1, "action": 2, "created_at": "2026-01-01T00:00:00"}, "created_at"),
        ({"state": 1, "action": 2, "colour": "red"}, "colour"),
        ({"state": 1, "action": 2, "usage": {"input_tokens": -3}}, "usage.input_tokens"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": [1, 2], "mask": [1]}}, "mask"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": [1.5], "mask": [1]}}, "token_ids"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": [2**40], "mask": [1]}}, "token_ids"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": [1], "mask": [2]}}, "mask"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": [1], "mask": [1], "logprobs": [float("nan")]}}, "logprobs"),
        ({"state": 1, "action": 2, "tokens": {"token_ids": ["x"], "mask": [1]}}, "token_ids"),
        ([1, 2], "object"),
    ],
)
def test_outside_data_is_refused_with_the_name_of_the_field(data: object, field: str) -> None:
    with pytest.raises(InvalidExperienceError, match=field):
        Transition.from_dict(data)


def test_a_missing_log_probability_stays_absent() -> None:
    assert TokenTrace(token_ids=[1], mask=[1]).to_dict()["logprobs"] is None


def test_feedback_is_about_one_experience_or_one_episode() -> None:
    assert Feedback(experience_id=3, reward=1.0).key == "reward"
    with pytest.raises(InvalidExperienceError, match="exactly one"):
        Feedback(reward=1.0)
    with pytest.raises(InvalidExperienceError, match="exactly one"):
        Feedback(experience_id=3, episode_id="e", reward=1.0)
    with pytest.raises(InvalidExperienceError, match="says nothing"):
        Feedback(experience_id=3)
    with pytest.raises(InvalidExperienceError, match="reward"):
        Feedback(experience_id=3, reward=float("nan"))


@pytest.mark.parametrize(("given", "kept"), [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.int8(-2), -2.0)])
def test_a_reward_is_a_float_whatever_number_it_was_given_as(given: object, kept: float) -> None:
    reward = Transition(state=1, action=2, reward=given).reward  # type: ignore[arg-type]
    assert (type(reward), reward) == (float, kept)


def test_a_reward_beyond_a_double_is_refused() -> None:
    with pytest.raises(InvalidExperienceError, match=r"Transition\.reward is inf"):
        Transition(state=1, action=2, reward=10**400)
