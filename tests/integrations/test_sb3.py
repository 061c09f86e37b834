"""Stable-Baselines3 with prioritized replay: the real library, small environments."""

import copy

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import relive
from relive.integrations.sb3 import DQN, SAC, PrioritizedReplayBuffer

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def small():
    """Settings of a small model; Stable-Baselines3 writes into what it is given, so each gets its own."""
    return {"learning_starts": 32, "batch_size": 16, "buffer_size": 500, "policy_kwargs": {"net_arch": [16]}}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def filled(count, *, n_envs=1, observation=BOX, ends=(), timeouts=(), **settings):
    """Transition t of environment e has the observation 10 t + e everywhere and the reward t."""
    buffer = PrioritizedReplayBuffer(count * n_envs, observation, spaces.Discrete(2), "cpu", n_envs, **settings)

    def seen(t):
        rows = np.stack([np.full(3, 10.0 * t + e, np.float32) for e in range(n_envs)])
        return {"a": rows, "b": rows.astype(np.int64)[:, :1]} if isinstance(observation, spaces.Dict) else rows

    for t in range(count):
        done = np.array([t in ends or t in timeouts] * n_envs)
        infos = [{"TimeLimit.truncated": t in timeouts}] * n_envs
        buffer.add(seen(t), seen(t + 1), np.full((n_envs, 1), t % 2), np.full(n_envs, float(t)), done, infos)
    return buffer


def test_a_batch_holds_what_was_added_with_weights_and_ids():
    buffer = filled(5, n_envs=2, ends=[1], timeouts=[3])
    data = buffer.sample(11)
    assert len(data.ids) == 10
    assert data.observations.shape == (10, 3)
    assert data.weights.shape == (10, 1)
    for row, id_ in enumerate(data.ids.tolist()):
        t, environment = divmod(id_, 2)
        assert data.observations[row].tolist() == [10 * t + environment] * 3
        assert data.next_observations[row].tolist() == [10 * (t + 1) + environment] * 3
        assert (data.rewards[row].item(), data.actions[row].item()) == (t, t % 2)
        assert data.dones[row].item() == (t == 1)  # the time limit at 3 does not count as an end


def test_without_handling_of_time_limits_each_end_counts():
    data = filled(5, timeouts=[3], handle_timeout_termination=False).sample(6)
    assert data.dones.flatten().tolist() == [t == 3 for t in data.ids.tolist()]


def test_td_errors_become_priorities_and_weights_follow_from_them():
    buffer = filled(4, alpha=1.0, beta=1.0)
    buffer.update_priorities(np.arange(4), torch.tensor([[1.0], [-3.0], [2.0], [2.0]]))
    drawn = [buffer.sample(4) for _ in range(400)]
    ids = np.concatenate([data.ids for data in drawn])
    assert np.bincount(ids, minlength=4) / 1600 == pytest.approx([1 / 8, 3 / 8, 2 / 8, 2 / 8], abs=0.05)
    raw = np.array([8.0, 8 / 3, 4.0, 4.0]) / 4  # (N P)^-1
    for data in drawn[:20]:
        np.testing.assert_allclose(data.weights[:, 0].numpy(), raw[data.ids] / raw[data.ids].max(), rtol=1e-4)


def test_dict_observations_keep_their_parts():
    space = spaces.Dict({"a": BOX, "b": spaces.Box(0, 1000, (1,), np.int64)})
    data = filled(5, observation=space).sample(6)
    assert data.observations["a"].shape == (5, 3)
    assert data.next_observations["b"][:, 0].tolist() == [10 * (t + 1) for t in data.ids.tolist()]


def test_discrete_observations_fit():
    buffer = PrioritizedReplayBuffer(10, spaces.Discrete(7), spaces.Discrete(2), "cpu", 2)
    buffer.add(np.array([3, 4]), np.array([4, 5]), np.array([0, 1]), np.zeros(2), np.zeros(2), [{}, {}])
    data = buffer.sample(3)
    assert data.observations.tolist() == [[3], [4]]
    assert data.observations.dtype == torch.int64


def test_several_steps_are_summed_for_each_environment_apart():
    buffer = filled(6, n_envs=2, ends=[2], timeouts=[4], n_steps=3, gamma=0.5)
    data = buffer.sample(13)
    # By hand: the episode terminates at 2 and is cut off at 4; 5 is the newest.
    returns = {0: (1.0, 0.0), 1: (2.0, 0.0), 2: (2.0, 0.0), 3: (5.0, 0.25), 4: (4.0, 0.5), 5: (5.0, 0.5)}
    last = {0: 2, 1: 2, 2: 2, 3: 4, 4: 4, 5: 5}
    for row, id_ in enumerate(data.ids.tolist()):
        t, environment = divmod(id_, 2)
        assert (data.rewards[row].item(), data.discounts[row].item()) == returns[t]
        assert data.next_observations[row, 0].item() == 10 * (last[t] + 1) + environment


def test_a_normalising_environment_normalises_what_is_drawn():
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    env.reset()
    for _ in range(50):
        env.step([env.action_space.sample()])
    buffer = PrioritizedReplayBuffer(10, env.observation_space, env.action_space, "cpu", 1)
    obs = np.ones((1, 4), np.float32)
    buffer.add(obs, obs, np.zeros(1), np.ones(1), np.zeros(1), [{}])
    data = buffer.sample(2, env=env)
    np.testing.assert_allclose(data.observations.numpy(), env.normalize_obs(obs), rtol=1e-6)
    np.testing.assert_allclose(data.rewards.numpy(), [env.normalize_reward(np.ones(1))], rtol=1e-6)
    several = PrioritizedReplayBuffer(10, env.observation_space, env.action_space, "cpu", 1, n_steps=2)
    several.add(obs, obs, np.zeros(1), np.ones(1), np.zeros(1), [{}])
    with pytest.raises(relive.buffer.BufferSettingError, match="normalises rewards"):
        several.sample(1, env=env)


def test_what_is_not_supported_is_said():
    with pytest.raises(relive.buffer.BufferSettingError, match="optimize_memory_usage"):
        PrioritizedReplayBuffer(10, BOX, spaces.Discrete(2), "cpu", 1, optimize_memory_usage=True)


def test_dqn_trains_with_weights_and_returns_td_errors():
    model = DQN("MlpPolicy", "CartPole-v1", seed=1, train_freq=4, **small())
    assert isinstance(model.replay_buffer, PrioritizedReplayBuffer)
    model.learn(400)
    memory = model.replay_buffer.memory
    ids = memory._index.ids()
    assert len(np.unique(memory.priorities(ids))) > 100  # they came from TD errors
    assert memory.stats().sampled == model._n_updates * 16


def test_with_equal_weights_one_step_of_dqn_is_stable_baselines3s_own():
    """beta 0 makes all weights 1; given the same rows, the parameters after a step are equal."""
    ours = DQN("MlpPolicy", "CartPole-v1", seed=1, replay_buffer_kwargs={"beta": 0.0, "beta_increment": 0.0}, **small())
    ours.learn(33)
    theirs = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", seed=1, **small())
    theirs.learn(33)
    theirs.policy.load_state_dict(ours.policy.state_dict())
    theirs.policy.optimizer.load_state_dict(copy.deepcopy(ours.policy.optimizer.state_dict()))
    data = ours.replay_buffer.sample(16)
    ours.replay_buffer.sample = theirs.replay_buffer.sample = lambda *_, **__: data
    for model in (ours, theirs):
        model.train(3, 16)
    for a, b in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_with_equal_weights_one_step_of_sac_is_stable_baselines3s_own():
    ours = SAC("MlpPolicy", "Pendulum-v1", seed=1, replay_buffer_kwargs={"beta": 0.0, "beta_increment": 0.0}, **small())
    ours.learn(40)
    theirs = stable_baselines3.SAC("MlpPolicy", "Pendulum-v1", seed=1, **small())
    theirs.learn(40)
    theirs.set_parameters(copy.deepcopy(ours.get_parameters()))
    theirs.log_ent_coef.data.copy_(ours.log_ent_coef.data)
    data = ours.replay_buffer.sample(16)
    ours.replay_buffer.sample = theirs.replay_buffer.sample = lambda *_, **__: data
    for model in (ours, theirs):
        torch.manual_seed(3)
        model.train(3, 16)
    for name in ("critic_loss", "actor_loss", "ent_coef_loss", "ent_coef"):
        losses = [model.logger.name_to_value[f"train/{name}"] for model in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for a, b in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.log_ent_coef, theirs.log_ent_coef)


def test_sac_learns_weights_and_several_environments():
    env = make_vec_env("Pendulum-v1", n_envs=2)
    model = SAC("MlpPolicy", env, seed=0, ent_coef=0.1, **small())
    model.learn(200)
    memory = model.replay_buffer.memory
    assert memory.stats().added == 200
    assert len(np.unique(memory.priorities(memory._index.ids()))) > 50


def test_several_steps_are_set_up_by_the_models_own_argument():
    model = DQN("MlpPolicy", "CartPole-v1", n_steps=3, gamma=0.9, train_freq=4, seed=0, **small())
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.9)
    model.learn(100)


def test_the_buffer_serves_stable_baselines3s_own_dqn():
    model = stable_baselines3.DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=PrioritizedReplayBuffer,
        replay_buffer_kwargs={"alpha": 0.7},
        train_freq=4,
        **small(),
    )
    model.learn(100)
    assert model.replay_buffer.memory.stats().sampled > 0


def test_another_buffer_makes_it_stable_baselines3s_own():
    from stable_baselines3.common.buffers import ReplayBuffer

    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, train_freq=4, **small())
    model.learn(100)
    assert model._n_updates > 0


def test_the_same_seed_gives_the_same_model():
    def parameters():
        model = DQN("MlpPolicy", "CartPole-v1", seed=7, train_freq=4, **small())
        model.learn(200)
        return [parameter.detach().clone() for parameter in model.policy.parameters()]

    for a, b in zip(parameters(), parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_saved_replay_buffer_goes_on_with_the_same_draws(tmp_path):
    model = DQN("MlpPolicy", "CartPole-v1", seed=1, train_freq=4, **small())
    model.learn(200)
    model.save_replay_buffer(tmp_path / "buffer")
    other = DQN("MlpPolicy", "CartPole-v1", seed=2, **small())
    other.load_replay_buffer(tmp_path / "buffer")
    for _ in range(3):
        a, b = model.replay_buffer.sample(16), other.replay_buffer.sample(16)
        assert a.ids.tolist() == b.ids.tolist()
        assert torch.equal(a.observations, b.observations)
        assert torch.equal(a.weights, b.weights)
    model.replay_buffer.reset()
    assert model.replay_buffer.size() == 0
    assert len(model.replay_buffer.sample(4).ids) == 0
