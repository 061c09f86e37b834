"""Environments: Gymnasium's five values, episodes of one answer, and no label where an agent could see it."""

import json
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from relive import Prioritized, ReplayBuffer, Transition
from relive.envs import Banking77, Environment, EnvironmentUseError, GymnasiumEnvironment, SingleAnswer
from relive.envs.banking import INTENTS, messages
from relive.envs.gymnasium import from_json, to_json


def riddles() -> SingleAnswer:
    return SingleAnswer(["1 + 1", "2 + 2"], lambda index, action: float(action == (2, 4)[index]), actions=[2, 4])


def test_a_single_answer_is_an_episode_of_length_one() -> None:
    env = riddles()
    assert env.reset() == ("1 + 1", {"index": 0})
    assert env.step(2) == (None, 1.0, True, False, {"index": 0})
    assert env.reset() == ("2 + 2", {"index": 1})
    assert env.step(2) == (None, 0.0, True, False, {"index": 1})
    assert env.reset()[0] == "1 + 1"


def test_a_stream_can_be_taken_up_at_any_question() -> None:
    env = riddles()
    assert env.reset(options={"index": 1})[0] == "2 + 2"
    with pytest.raises(EnvironmentUseError, match="no question 2"):
        env.reset(options={"index": 2})


def test_a_step_out_of_turn_or_a_forbidden_action_is_refused() -> None:
    env = riddles()
    with pytest.raises(EnvironmentUseError, match="call reset"):
        env.step(2)
    env.reset()
    with pytest.raises(EnvironmentUseError, match="not an allowed action"):
        env.step(3)
    env.step(4)
    with pytest.raises(EnvironmentUseError, match="call reset"):
        env.step(4)
    with pytest.raises(ValueError, match="at least one"):
        SingleAnswer([], lambda index, action: None)
    with pytest.raises(ValueError, match="twice"):
        SingleAnswer(["q"], lambda index, action: None, actions=["a", "a"])


@pytest.mark.parametrize("env", [riddles(), Banking77(count=1)])
def test_every_environment_fits_the_protocol(env: Environment) -> None:
    assert isinstance(env, Environment)


def test_the_shipped_messages_are_those_of_sixteen_intents() -> None:
    train, test = messages("train"), messages("test")
    assert (len(train), len(test)) == (1972, 640)
    assert set(Counter(intent for _, intent in test).values()) == {40}
    assert {intent for _, intent in train} == set(INTENTS)
    assert ("I am still waiting on my card?", "card_arrival") in train
    assert not {text for text, _ in train} & {text for text, _ in test}


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert Banking77(count=20, seed=3).texts == Banking77(count=20, seed=3).texts
    assert Banking77(count=20, seed=3).texts != Banking77(count=20, seed=4).texts
    assert Banking77(count=20, seed=3).texts == Banking77(count=300, seed=3).texts[:20]
    with pytest.raises(ValueError, match="from 1 to 1972"):
        Banking77(count=5000)


def test_banking77_rewards_the_right_intent_and_shows_no_label() -> None:
    labels = dict(messages("train"))
    env = Banking77(count=30, seed=1)
    for text in env.texts:
        observation, info = env.reset()
        assert observation[-1] == {"role": "user", "content": text}
        assert info == {"index": env.texts.index(text)}
        wrong = next(intent for intent in INTENTS if intent != labels[text])
        _, reward, terminated, truncated, after = env.step(wrong)
        assert (reward, terminated, truncated, after) == (0.0, True, False, info)
        env.reset(options=info)
        assert env.step(labels[text])[1] == 1.0


def test_shuffled_rewards_keep_the_messages_and_lose_the_meaning() -> None:
    labels = dict(messages("train"))
    plain, shuffled = Banking77(seed=0), Banking77(seed=0, shuffled_rewards=True)
    assert plain.texts == shuffled.texts
    right = 0
    for text in shuffled.texts:
        shuffled.reset()
        right += shuffled.step(labels[text])[1] or 0
    assert right / len(shuffled.texts) < 0.12  # by chance Σ p², 0.066 here


def test_observations_and_actions_of_any_space_pass_through_json() -> None:
    space = spaces.Dict(
        {
            "floor": spaces.Discrete(3, start=1),
            "speed": spaces.Box(-1, 1, (2, 2), np.float32),
            "rest": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([2, 5]), spaces.Text(8))),
        },
        seed=0,
    )
    for _ in range(10):
        value = space.sample()
        through = json.loads(json.dumps(to_json(value)))
        back = from_json(space, through)
        assert space.contains(back)
        assert to_json(back) == through


def test_a_gymnasium_environment_is_one_of_ours() -> None:
    env = GymnasiumEnvironment(gymnasium.make("CartPole-v1"))
    assert isinstance(env, Environment)
    assert env.actions == (0, 1)
    observation, info = env.reset(seed=0)
    assert len(observation) == 4
    assert info == {}
    observation, reward, terminated, truncated, _ = env.step(1)
    json.dumps(observation)
    assert (reward, terminated, truncated) == (1.0, False, False)
    env.env.close()
    assert GymnasiumEnvironment(gymnasium.make("Pendulum-v1")).actions is None


def test_tabular_q_learning_from_a_prioritized_buffer_finds_the_way_along_the_cliff() -> None:
    env = GymnasiumEnvironment(gymnasium.make("CliffWalking-v1", max_episode_steps=200))
    actions = env.actions
    assert actions is not None
    buffer = ReplayBuffer(2_000, sampler=Prioritized(alpha=0.6, beta=0.4), seed=0)
    values = np.zeros((48, len(actions)))
    rng = np.random.default_rng(0)
    for episode in range(60):
        state, _ = env.reset(seed=episode)
        done = False
        while not done:
            greedy = rng.choice(np.flatnonzero(values[state] == values[state].max()))
            action = int(rng.integers(len(actions)) if rng.random() < 0.1 else greedy)
            following, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            buffer.add(
                Transition(state=state, action=action, next_state=following, reward=reward, terminated=terminated)
            )
            state = following
            batch = buffer.sample(16)
            errors = np.zeros(len(batch))
            for i, seen in enumerate(batch.experiences):
                ahead = 0.0 if seen.terminated else values[seen.next_state].max()
                errors[i] = seen.reward + ahead - values[seen.state, seen.action]
                values[seen.state, seen.action] += 0.5 * batch.weights[i] * errors[i]
            buffer.update_priorities(batch.ids, td_errors=errors)
    state, _ = env.reset(seed=1_000)
    total, done = 0.0, False
    while not done:
        state, reward, terminated, truncated, _ = env.step(int(values[state].argmax()))
        total += reward
        done = terminated or truncated
    assert total == -13  # the shortest way: up, eleven to the right, down
