"""Prioritized replay for Stable-Baselines3: a buffer for ``replay_buffer_class``, and the `DQN` and `SAC` that use it.

Stable-Baselines3's own losses ignore importance weights and return no TD errors, so a prioritized buffer alone would
bias them. The subclasses here change two things in ``train``: each row's loss is multiplied by its weight, and its TD
error becomes its new priority. Everything else, and every argument, is Stable-Baselines3's.

```python
from relive.integrations.sb3 import DQN

model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"alpha": 0.6, "beta": 0.4})
model.learn(50_000)
```
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn import functional

from relive import buffer as relive_buffer
from relive.buffer import ArrayStorage, BufferSettingError, EpisodeFields, NStep, Prioritized

TorchObservations = torch.Tensor | dict[str, torch.Tensor]


class PrioritizedSamples(NamedTuple):
    """Stable-Baselines3's ``ReplayBufferSamples`` with two fields more.

    Attributes:
        observations: ``[B, ...]``, or a dict of such.
        actions: ``[B, action_dim]``.
        next_observations: Like `observations`.
        dones: float32 ``[B, 1]``, 1 where the episode terminated (not where a time limit cut it off).
        rewards: float32 ``[B, 1]``, of n steps when the buffer sums them.
        discounts: float32 ``[B, 1]``, gamma^steps when the buffer sums several steps; ``None``: one step.
        weights: float32 ``[B, 1]``, importance weights.
        ids: int64 ``[B]``, for `PrioritizedReplayBuffer.update_priorities`.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    weights: torch.Tensor
    ids: npt.NDArray[np.int64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """Stable-Baselines3's replay buffer over a `relive.ReplayBuffer`, for plain and dict observations.

    Pass it as ``replay_buffer_class`` with the settings below in ``replay_buffer_kwargs``. New transitions get the
    largest priority stored. With Stable-Baselines3's own algorithms it works too, but these ignore the weights and
    update no priority.

    Args:
        buffer_size: Most transitions kept, over all environments.
        observation_space: The observations' space.
        action_space: The actions' space.
        device: Where tensors go.
        n_envs: Environments that run side by side.
        optimize_memory_usage: Not supported: an observation is needed beside its successor.
        handle_timeout_termination: A time limit does not count as the end of the task.
        alpha: How far priorities count, at least 0.
        beta: Exponent of the importance weights in the first draw, 0 to 1.
        beta_increment: What each draw adds to beta, up to 1.
        n_steps: Rewards summed for each transition.
        gamma: Discount, when there are several steps.
        seed: Seed of the draws; ``None``: another one each time.

    Raises:
        BufferSettingError: a setting is out of range or not supported.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_increment: float = 0.001,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = 0,
    ) -> None:
        # The arrays of ReplayBuffer are not made: a transition lies in one row of Relive's storage.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage:
            raise BufferSettingError("optimize_memory_usage is not supported; leave it out (a row holds both states).")
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = n_steps
        self.gamma = gamma
        self._alpha = alpha
        self._beta = beta
        self._beta_increment = beta_increment
        self._seed = seed
        self._environments = np.arange(n_envs)
        self.memory = self._make_memory()

    def _make_memory(self) -> relive_buffer.ReplayBuffer:
        sampler: Prioritized | NStep = Prioritized(self._alpha, self._beta, self._beta_increment)
        if self.n_steps > 1:
            # Rows of one environment follow one another; the rows of several lie interleaved.
            fields = EpisodeFields(terminated="terminated", truncated="truncated", episode="environment")
            sampler = NStep(self.n_steps, self.gamma, sampler=sampler, fields=fields)
        return relive_buffer.ReplayBuffer(
            self.buffer_size * self.n_envs,
            storage=ArrayStorage(self._fields()),
            sampler=sampler,
            seed=self._seed,
        )

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for prefix in ("obs", "next_obs"):
            for name, space, shape in self._observed():
                fields[prefix + name] = (space.dtype, shape)
        action = self._maybe_cast_dtype(self.action_space.dtype)
        fields |= {"action": (action, (self.action_dim,)), "reward": "f4", "terminated": "?", "truncated": "?"}
        if self.n_steps > 1:
            fields["environment"] = "i4"
        return fields

    def _observed(self) -> list[tuple[str, spaces.Space[Any], tuple[int, ...]]]:
        """Suffix of the field, space and shape of each observation."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return [(f"/{key}", part, get_obs_shape(part)) for key, part in space.spaces.items()]  # type: ignore[misc]
        return [("", space, self.obs_shape)]

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        done: npt.NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Adds one transition of each environment."""
        timeout = np.zeros(self.n_envs, dtype=np.bool_)
        if self.handle_timeout_termination:
            timeout = np.array([info.get("TimeLimit.truncated", False) for info in infos], dtype=np.bool_)
        ended = np.asarray(done, dtype=np.bool_)
        columns: dict[str, npt.NDArray[Any]] = {
            "action": self._shaped(action, (self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype)),
            "reward": self._shaped(reward, (), np.float32),
            "terminated": ended & ~timeout,
            "truncated": ended & timeout,
        }
        for prefix, observation in (("obs", obs), ("next_obs", next_obs)):
            for name, space, shape in self._observed():
                part = observation[name[1:]] if name else observation
                columns[prefix + name] = self._shaped(part, shape, space.dtype)
        if self.n_steps > 1:
            columns["environment"] = self._environments
        self.memory.add_batch(columns)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> PrioritizedSamples:  # type: ignore[override]
        """Draws by priority. While fewer are stored than asked for, each comes once.

        Args:
            batch_size: How many.
            env: Normalises observations and rewards.

        Raises:
            BufferSettingError: rewards of several steps cannot be normalised after they were summed.
        """
        batch = self.memory.sample(batch_size)
        last: Any
        if batch.n_step is None:
            rewards, dones, discounts, last = batch["reward"], batch["terminated"], None, batch.columns
        else:
            if env is not None and env.norm_reward:
                raise BufferSettingError("n_steps > 1 does not go with a VecNormalize that normalises rewards.")
            rewards, last = batch.n_step.rewards, batch.n_step.last
            dones = np.zeros(len(batch))  # the discount is 0 where the episode terminated
            discounts = self._column(batch.n_step.discounts)
        return PrioritizedSamples(
            observations=self._observations("obs", batch.columns, env),
            actions=self._tensor(batch["action"]),
            next_observations=self._observations("next_obs", last, env),
            dones=self._column(dones),
            rewards=self._column(self._normalize_reward(rewards, env)),
            discounts=discounts,
            weights=self._column(batch.weights),
            ids=batch.ids,
        )

    def update_priorities(self, ids: npt.NDArray[np.int64], td_errors: torch.Tensor) -> None:
        """Makes the TD errors of drawn transitions their priorities; what has left meanwhile is ignored.

        Args:
            ids: ``samples.ids``.
            td_errors: ``[B]`` or ``[B, 1]``, signed or not.
        """
        self.memory.update_priorities(ids, td_errors=td_errors.detach().reshape(-1).cpu().numpy())

    def reset(self) -> None:
        """Forgets all transitions."""
        super().reset()
        self.memory = self._make_memory()

    def _get_samples(self, batch_inds: npt.NDArray[Any], env: VecNormalize | None = None) -> Any:  # noqa: ARG002
        raise BufferSettingError("A PrioritizedReplayBuffer draws by itself: call sample(batch_size).")

    def _shaped(self, values: Any, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Values of all environments as ``[n_envs, *shape]``."""
        return np.asarray(values).reshape(self.n_envs, *shape).astype(dtype, copy=False)

    def _observations(self, prefix: str, columns: Any, env: VecNormalize | None) -> TorchObservations:
        if not isinstance(self.observation_space, spaces.Dict):
            return self._tensor(self._normalize_obs(columns[prefix], env))
        parts = {key: columns[f"{prefix}/{key}"] for key in self.observation_space.spaces}
        normalised: Any = self._normalize_obs(parts, env)
        return {key: self._tensor(part) for key, part in normalised.items()}

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)  # the batch owns its memory: no copy

    def _column(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return self._tensor(values.astype(np.float32, copy=False).reshape(-1, 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**{k: v for k, v in self.__dict__.items() if k != "memory"}, "state": self.memory.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("state")
        self.__dict__.update(state)
        self.memory = self._make_memory()
        self.memory.load_state_dict(saved)


class DQN(stable_baselines3.DQN):
    """Stable-Baselines3's DQN with prioritized replay (Schaul et al. 2016).

    ``replay_buffer_class`` is `PrioritizedReplayBuffer` unless another one is passed; with one that gives no weights it
    trains as Stable-Baselines3's own.
    """

    def _setup_model(self) -> None:
        _prioritize(self)
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Does gradient steps on weighted losses and returns the TD errors to the buffer."""
        memory = self.replay_buffer
        if not isinstance(memory, PrioritizedReplayBuffer):
            super().train(gradient_steps, batch_size)
            return
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            data = memory.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if data.discounts is None else data.discounts
            with torch.no_grad():
                best = self.q_net_target(data.next_observations).max(dim=1).values.reshape(-1, 1)
                targets = data.rewards + (1 - data.dones) * discounts * best
            values = torch.gather(self.q_net(data.observations), dim=1, index=data.actions.long())
            loss = (data.weights * functional.smooth_l1_loss(values, targets, reduction="none")).mean()
            losses.append(loss.item())
            memory.update_priorities(data.ids, targets - values)

            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


class SAC(stable_baselines3.SAC):
    """Stable-Baselines3's SAC with prioritized replay: weights on the critics' losses, their mean |TD error| back.

    ``replay_buffer_class`` is `PrioritizedReplayBuffer` unless another one is passed; with one that gives no weights it
    trains as Stable-Baselines3's own.
    """

    def _setup_model(self) -> None:
        _prioritize(self)
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Does gradient steps on weighted losses and returns the TD errors to the buffer."""
        memory = self.replay_buffer
        if not isinstance(memory, PrioritizedReplayBuffer):
            super().train(gradient_steps, batch_size)
            return
        self.policy.set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        self._update_learning_rate(optimizers)
        records: dict[str, list[float]] = {}
        for step in range(gradient_steps):
            data = memory.sample(batch_size, env=self._vec_normalize_env)
            if self.use_sde:
                self.actor.reset_noise()
            actions, log_prob = self.actor.action_log_prob(data.observations)
            log_prob = log_prob.reshape(-1, 1)
            temperature = self._temperature(log_prob, records)
            critic_loss = self._train_critic(memory, data, temperature)

            values = torch.cat(self.critic(data.observations, actions), dim=1)
            actor_loss = (temperature * log_prob - values.min(dim=1, keepdim=True).values).mean()
            self.actor.optimizer.zero_grad()
            actor_loss.backward()  # type: ignore[no-untyped-call]
            self.actor.optimizer.step()

            for name, value in (("ent_coef", temperature), ("actor_loss", actor_loss), ("critic_loss", critic_loss)):
                records.setdefault(name, []).append(value.item())
            if step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, numbers in records.items():
            self.logger.record(f"train/{name}", np.mean(numbers))

    def _temperature(self, log_prob: torch.Tensor, records: dict[str, list[float]]) -> torch.Tensor:
        """The entropy coefficient of this step; learns it where it is learnt."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor
        temperature = torch.exp(self.log_ent_coef.detach())
        loss = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        records.setdefault("ent_coef_loss", []).append(loss.item())
        self.ent_coef_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.ent_coef_optimizer.step()
        return temperature

    def _train_critic(
        self, memory: PrioritizedReplayBuffer, data: PrioritizedSamples, temperature: torch.Tensor
    ) -> torch.Tensor:
        """One weighted step of the critics; their TD errors go to the buffer."""
        discounts = self.gamma if data.discounts is None else data.discounts
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(data.next_observations)
            next_values = torch.cat(self.critic_target(data.next_observations, next_actions), dim=1)
            next_values = next_values.min(dim=1, keepdim=True).values - temperature * next_log_prob.reshape(-1, 1)
            targets = data.rewards + (1 - data.dones) * discounts * next_values
        errors = targets - torch.cat(self.critic(data.observations, data.actions), dim=1)
        # 0.5 * the sum over critics of the weighted mean squared error
        loss = 0.5 * (data.weights * errors**2).mean(dim=0).sum()
        memory.update_priorities(data.ids, errors.abs().mean(dim=1))
        self.critic.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic.optimizer.step()
        return loss


def _prioritize(model: stable_baselines3.DQN | stable_baselines3.SAC) -> None:
    """Makes `PrioritizedReplayBuffer` the default, with the model's seed and number of steps."""
    if model.replay_buffer_class is None:
        model.replay_buffer_class = PrioritizedReplayBuffer
    if not issubclass(model.replay_buffer_class, PrioritizedReplayBuffer):
        return
    settings = {"seed": model.seed} | model.replay_buffer_kwargs
    if model.n_steps > 1:
        settings = {"n_steps": model.n_steps, "gamma": model.gamma} | settings
        model.n_steps = 1  # Stable-Baselines3 would warn that it does not pass them on
    model.replay_buffer_kwargs = settings
