"""Advantages, masks and losses of GRPO and its kin: pure functions over tensors, for any trainer.

A step, with `B` answers padded to `T` tokens, of which `micro` are looked at at a time::

    advantages = group_advantages(rewards, groups)  # over whole groups, fresh and replayed answers together
    mask = loss_mask(sampled, advantages, truncated=truncated)
    step = denominators(mask)  # of the whole step, before it is split
    for rows in torch.arange(B).split(micro):
        new = token_logprobs(model(ids[rows]).logits[:, :-1], ids[rows, 1:], temperature)
        losses = token_losses(new, advantages.values[rows], mask[rows], recomputed=old[rows])
        reduced(losses, mask[rows], step).backward()

What holds: an answer that nobody scored, one of a group without spread, and a token that the policy did not sample are
in no numerator and no denominator. Advantages are never frozen: they are made again for each mixed group. How a step is
split into micro-batches changes neither loss nor gradient. Where nothing is left to learn from, the loss is 0, never
NaN; skip the optimiser's step then (`Denominators.empty`), for momentum alone would move the weights.

Sources. GRPO: Shao et al. 2024, arXiv 2402.03300. Without deviation, constant divisor: Liu et al. 2025 (Dr. GRPO),
arXiv 2503.20783. Clip low and high, token mean, soft punishment of long answers: Yu et al. 2025 (DAPO), arXiv
2503.14476. Dual clip: Ye et al. 2020, arXiv 1912.09729. Mixed groups: Zhang et al. 2025 (RLEP), arXiv 2507.07451. KL:
Schulman 2020, "Approximating KL divergence", estimator k3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from relive.train.pytorch import torch

Tensor = torch.Tensor
Scale = Literal["sample", "population", "none"]
OldLogprobs = Literal["recompute", "behaviour", "shaped", "decoupled"]
Reduction = Literal["token_mean", "sequence_mean", "constant"]

SAME = 1e-6
"""Rewards that lie closer to their group's mean than this are the same; relative to the largest above 1."""


class Advantages(NamedTuple):
    """By how much each answer of a step is better than its group.

    Attributes:
        values: float32 ``[B]``; exactly 0 where nobody scored the answer, and in a group without spread.
        scored: bool ``[B]``, whether the answer has a reward.
        informative: bool ``[B]``, whether the rewards of its group differ.
        unscored: Number of answers without a reward.
        zero_spread: Share of groups whose rewards do not differ, those with fewer than two included.
    """

    values: Tensor
    scored: Tensor
    informative: Tensor
    unscored: int
    zero_spread: float


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "sample",
    epsilon: float = 1e-4,
    sizes: Mapping[int, int] | None = None,
) -> Advantages:
    """Each reward less its group's mean, over the group's deviation: ``A = (r - mean) / (std + epsilon)``.

    Shao et al. 2024; with ``scale="none"`` Liu et al. 2025; over fresh and replayed answers together, Zhang
    et al. 2025. Mean and deviation are those of the scored answers. The deviation of a group whose rewards differ by
    rounding only is not divided by: such a group has no spread.

    Args:
        rewards: ``[B]``; NaN where nobody scored the answer.
        groups: Integers ``[B]``, the same for answers to the same prompt, in any order.
        scale: ``"sample"``: the deviation with n - 1; ``"population"``: with n; ``"none"``: no division.
        epsilon: Added to the deviation.
        sizes: How many answers each group has in all; a group of which only a part is here is refused.

    Raises:
        ValueError: a reward is infinite, or a part of a group is missing.
    """
    if rewards.isinf().any():
        raise ValueError(f"Reward {int(rewards.isinf().nonzero()[0])} is infinite; use NaN where nobody scored.")
    names, group, count = groups.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    if sizes is not None:
        for name, here in zip(names.tolist(), count.tolist(), strict=True):
            if sizes[name] != here:
                raise ValueError(f"Group {name} has {here} of its {sizes[name]} answers; train on whole groups only.")
    scored = ~rewards.isnan()
    known = rewards.double().nan_to_num(0.0)

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(names)).index_add(0, group, values)

    scores = total(scored.double())
    centred = torch.where(scored, known - (total(known) / scores.clamp(min=1))[group], 0.0)
    far, size = (
        scores.new_zeros(len(names)).scatter_reduce(0, group, values.abs(), "amax") for values in (centred, known)
    )
    spread = far > SAME * size.clamp(min=1)
    if scale == "none":
        values = centred
    else:
        freedom = scores - 1 if scale == "sample" else scores
        values = centred / ((total(centred**2) / freedom.clamp(min=1)).sqrt() + epsilon)[group]
    return Advantages(
        values=torch.where(spread[group], values, 0.0).float(),
        scored=scored,
        informative=spread[group],
        unscored=int((~scored).sum()),
        zero_spread=1.0 - float(spread.double().mean()) if len(names) else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """What becomes of answers that were cut off at the length limit; part of a run's record.

    Attributes:
        masked: They are not trained on (Yu et al. 2025, "overlong filtering"); their reward still counts in the group's
            mean.
        reward: ``"keep"``: as scored; ``"zero"``: 0; ``"soft"``: less by up to 1 over the last `margin` tokens before
            `limit`, for answers that were not cut off too (Yu et al. 2025).
        limit: Most tokens of an answer; only ``"soft"`` needs it.
        margin: Tokens before the limit over which the punishment grows; only ``"soft"`` needs it.
    """

    masked: bool = True
    reward: Literal["keep", "zero", "soft"] = "keep"
    limit: int = 0
    margin: int = 0

    def __post_init__(self) -> None:
        if self.reward == "soft" and not 0 < self.margin <= self.limit:
            raise ValueError('Truncation(reward="soft") needs limit and margin, with margin from 1 to limit.')


KEEP = Truncation()
"""Answers that were cut off keep their reward and are not trained on."""


def truncated_rewards(rewards: Tensor, lengths: Tensor, truncated: Tensor, policy: Truncation = KEEP) -> Tensor:
    """The rewards that a policy for cut-off answers gives; before `group_advantages`.

    Args:
        rewards: ``[B]``; NaN stays NaN.
        lengths: ``[B]``, tokens of each answer.
        truncated: bool ``[B]``.
        policy: What becomes of them.
    """
    if policy.reward == "zero":
        return torch.where(truncated & ~rewards.isnan(), 0.0, rewards)
    if policy.reward == "soft":
        return rewards + ((policy.limit - policy.margin - lengths) / policy.margin).clamp(-1.0, 0.0)
    return rewards


class Lengths(NamedTuple):
    """How long the answers of a step are, those that are not trained on included.

    Attributes:
        mean: Tokens.
        longest: Tokens.
        cut: Share that was cut off.
    """

    mean: float
    longest: int
    cut: float


def answer_lengths(sampled: Tensor, truncated: Tensor) -> Lengths:
    """The lengths of a step's answers, from bool ``[B, T]`` and bool ``[B]``; at least one answer."""
    tokens = sampled.bool().sum(1)
    return Lengths(float(tokens.double().mean()), int(tokens.max()), float(truncated.double().mean()))


def loss_mask(
    sampled: Tensor,
    advantages: Advantages,
    *,
    truncated: Tensor | None = None,
    truncation: Truncation = KEEP,
    skip_zero_spread: bool = True,
) -> Tensor:
    """Which tokens are trained on: bool ``[B, T]``.

    Args:
        sampled: ``[B, T]``, 1 where the policy sampled the token (`TokenTrace.mask`): 0 at prompts, at what tools and
            the environment said, and at padding.
        advantages: The answers' advantages; those that nobody scored are left out.
        truncated: bool ``[B]``, whether an answer was cut off; ``None``: none was.
        truncation: Whether those are left out.
        skip_zero_spread: Groups without spread are left out. Otherwise their tokens count in the mean, and as their
            advantages are 0 only a KL penalty acts on them.
    """
    rows = advantages.scored
    if skip_zero_spread:
        rows = rows & advantages.informative
    if truncated is not None and truncation.masked:
        rows = rows & ~truncated
    return sampled.bool() & rows[:, None]


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities ``[B, T]`` of tokens in the distribution that they were sampled from.

    Args:
        logits: ``[B, T, V]``, those that `tokens` were drawn by.
        tokens: Integers ``[B, T]``.
        temperature: The sampler's; without it the ratio is not 1 at equal weights.

    Raises:
        ValueError: the temperature is not above 0: greedy decoding samples from no distribution.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0.")
    logits = logits.float() / temperature
    chosen: Tensor = logits.gather(-1, tokens[..., None].long())[..., 0]
    return chosen - logits.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """The objective of one token, by what its probability is compared with.

    With π the policy that is trained (with gradient), π₀ the same at the start of the step, μ the policy that sampled
    the token, A the advantage, and ``clipped(r) = min(r A, clip(r, 1 - low, 1 + high) A)``:

    =============  ==================================  ===========================================================
    `old`          objective                           source
    =============  ==================================  ===========================================================
    ``recompute``  clipped(π / π₀)                     RLEP, Zhang et al. 2025: who sampled the token plays no part
    ``behaviour``  clipped(π / μ)                      PPO, Schulman et al. 2017, arXiv 1707.06347
    ``shaped``     f(π / μ) A, f(w) = w / (w + 0.1)    LUFFY, Yan et al. 2025, arXiv 2504.14945: never clipped
    ``decoupled``  min(π₀ / μ, limit) clipped(π / π₀)  Hilton et al. 2022, arXiv 2110.00641; AReaL, arXiv 2505.24298
    =============  ==================================  ===========================================================

    With dual clip c the objective of a clipped one with A < 0 is ``max(clipped(r), c A)``: a token that became much
    likelier is not punished without bound.

    Attributes:
        old: Which of them.
        low: How far the ratio may fall before its gradient ends.
        high: How far it may rise.
        dual: c, above 1; ``None``: no dual clip.
        limit: Largest correction π₀ / μ; truncated, not dropped.
    """

    old: OldLogprobs = "recompute"
    low: float = 0.2
    high: float = 0.28
    dual: float | None = None
    limit: float = 5.0

    def __post_init__(self) -> None:
        if not (0 <= self.low <= 1 and self.high >= 0 and self.limit > 0):
            raise ValueError("low must be from 0 to 1, high at least 0, and limit above 0.")
        if self.dual is not None and not self.dual > 1:
            raise ValueError(f"dual is {self.dual}; it must be above 1.")


RECOMPUTE = Surrogate()
"""What RLEP does: clip 0.2 and 0.28, ratios to the policy at the start of the step."""

SHAPE = 0.1
"""γ of the shaping w / (w + γ)."""


def token_losses(
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    recomputed: Tensor | None = None,
    behaviour: Tensor | None = None,
    surrogate: Surrogate = RECOMPUTE,
) -> Tensor:
    """The loss of each token, ``[B, T]``: the objective of `Surrogate` with its sign turned; 0 outside the mask.

    Fresh and replayed rows that are treated differently are two calls, each with its own mask, and their sum.

    Args:
        logprobs: ``[B, T]``, under the policy that is trained, with gradient.
        advantages: ``[B]``.
        mask: bool ``[B, T]``.
        recomputed: ``[B, T]``, under the same policy at the start of the step; ``None``: this is the first update of
            the step, so they are `logprobs`.
        behaviour: ``[B, T]``, under the policy that sampled, as recorded; NaN where nobody did.
        surrogate: Which objective.

    Raises:
        ValueError: the objective needs a log-probability of a token in the mask that is not there.
    """
    advantage = advantages[:, None].to(logprobs.dtype)
    start = logprobs.detach() if recomputed is None else recomputed
    if surrogate.old == "shaped":
        ratio = _ratio(logprobs, _known(behaviour, mask, surrogate.old), mask)
        objective = ratio / (ratio + SHAPE) * advantage
    elif surrogate.old == "behaviour":
        objective = _clipped(_ratio(logprobs, _known(behaviour, mask, surrogate.old), mask), advantage, surrogate)
    else:
        objective = _clipped(_ratio(logprobs, start, mask), advantage, surrogate)
    if surrogate.old == "decoupled":
        correction = _ratio(start.detach(), _known(behaviour, mask, surrogate.old), mask)
        objective = correction.clamp(max=surrogate.limit) * objective
    return torch.where(mask, -objective, 0.0)


def kl_penalty(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Estimates of the KL divergence from a reference policy, ``[B, T]``, to be weighted and added to the losses.

    Schulman's k3, ``exp(d) - d - 1`` with ``d = log π_ref - log π``: without bias for samples of π, and never negative.
    For answers that another policy sampled it is a penalty, not an estimate.

    Args:
        logprobs: ``[B, T]``, with gradient.
        reference: ``[B, T]``, under the reference.
        mask: bool ``[B, T]``; 0 outside of it.
    """
    difference = torch.where(mask, reference - logprobs, 0.0)
    return difference.exp() - difference - 1.0


class Denominators(NamedTuple):
    """What a step's losses are divided by; with several processes, the sums over all of them.

    Attributes:
        tokens: Tokens that are trained on.
        sequences: Answers with at least one of them.
    """

    tokens: int
    sequences: int

    @property
    def empty(self) -> bool:
        """Whether nothing is to be learnt in this step: all answers are masked."""
        return self.tokens == 0


def denominators(mask: Tensor) -> Denominators:
    """Counts of a whole step, from its mask ``[B, T]``; taken before the step is split into micro-batches."""
    return Denominators(int(mask.sum()), int(mask.any(1).sum()))


def reduced(
    losses: Tensor, mask: Tensor, step: Denominators, *, how: Reduction = "token_mean", divisor: int | None = None
) -> Tensor:
    """The loss of a micro-batch as its part of the step's: the parts' sum is the loss of the step, however split.

    Args:
        losses: ``[b, T]``, rows of the step.
        mask: bool ``[b, T]``, the same rows.
        step: Counts of the *whole* step.
        how: ``"token_mean"``: every token weighs the same (Yu et al. 2025); ``"sequence_mean"``: every answer does, and
            so a token of a long answer less (Shao et al. 2024); ``"constant"``: the sum over `divisor` tokens an
            answer, whatever its length (Liu et al. 2025).
        divisor: For ``"constant"``: usually the most tokens of an answer.

    Raises:
        ValueError: ``"constant"`` without a divisor above 0.
    """
    kept = torch.where(mask, losses, 0.0)
    if how == "token_mean":
        return kept.sum() / max(step.tokens, 1)
    if how == "sequence_mean":
        return (kept.sum(1) / mask.sum(1).clamp(min=1)).sum() / max(step.sequences, 1)
    if divisor is None or divisor < 1:
        raise ValueError(f'reduction "constant" needs a divisor of at least 1, not {divisor}.')
    return kept.sum() / (divisor * max(step.sequences, 1))


def _ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The ratio new / old as probabilities; 1 outside the mask, so that nothing there can spoil a gradient."""
    return torch.where(mask, new - old, 0.0).exp()


def _clipped(ratio: Tensor, advantage: Tensor, surrogate: Surrogate) -> Tensor:
    within = ratio.clamp(1.0 - surrogate.low, 1.0 + surrogate.high)
    objective = torch.minimum(ratio * advantage, within * advantage)
    if surrogate.dual is None:
        return objective
    return torch.where(advantage < 0, torch.maximum(objective, surrogate.dual * advantage), objective)


def _known(behaviour: Tensor | None, mask: Tensor, old: OldLogprobs) -> Tensor:
    if behaviour is None or bool((mask & ~behaviour.isfinite()).any()):
        raise ValueError(
            f'old="{old}" needs the recorded log-probability of every token that is trained on; '
            'mask those without one, or use old="recompute".'
        )
    return behaviour
