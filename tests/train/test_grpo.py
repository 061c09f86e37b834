"""Advantages, masks and losses: all expectations by hand."""

import math

import pytest
import torch

from relive import Transition
from relive.rewards import Weighted
from relive.train.grpo import (
    Surrogate,
    Truncation,
    answer_lengths,
    denominators,
    group_advantages,
    kl_penalty,
    loss_mask,
    reduced,
    token_logprobs,
    token_losses,
    truncated_rewards,
)

NAN = math.nan


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def ones(rows, tokens):
    return torch.ones(rows, tokens, dtype=torch.bool)


# ---- Advantages


def test_an_advantage_is_the_reward_less_the_groups_mean_over_its_deviation() -> None:
    rewards, groups = (
        tensor(1, 5, 3, 5, 5),
        torch.tensor([7, 2, 7, 2, 7]),
    )  # group 7: 1, 3, 5; mean 3, squares 4 + 0 + 4
    plain = group_advantages(rewards, groups, scale="none")
    assert plain.values.tolist() == [-2, 0, 0, 0, 2]
    sample = group_advantages(rewards, groups, epsilon=0.0)
    assert sample.values.tolist() == pytest.approx([-1, 0, 0, 0, 1])
    population = group_advantages(rewards, groups, scale="population", epsilon=0.0)
    assert population.values.tolist() == pytest.approx([-2 / math.sqrt(8 / 3), 0, 0, 0, 2 / math.sqrt(8 / 3)])
    assert sample.informative.tolist() == [True, False, True, False, True]
    assert sample.zero_spread == 0.5


def test_a_replayed_success_takes_part_in_the_mean_of_its_group() -> None:
    fresh = group_advantages(tensor(0, 0, 0), torch.zeros(3, dtype=torch.long), scale="none")
    assert not fresh.informative.any(), "without it there is nothing to learn"
    mixed = group_advantages(tensor(0, 0, 0, 1), torch.zeros(4, dtype=torch.long), scale="none")
    assert mixed.values.tolist() == [-0.25, -0.25, -0.25, 0.75]


def test_a_part_of_a_group_is_refused() -> None:
    groups = torch.tensor([3, 3, 5])
    with pytest.raises(ValueError, match="Group 5 has 1 of its 2 answers"):
        group_advantages(tensor(1, 0, 1), groups, sizes={3: 2, 5: 2})
    assert group_advantages(tensor(1, 0, 1), groups, sizes={3: 2, 5: 1}).zero_spread == 0.5


def test_an_infinite_reward_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match="Reward 1 is infinite"):
        group_advantages(tensor(0, math.inf), torch.zeros(2, dtype=torch.long))


def test_a_step_without_answers_has_no_advantages() -> None:
    empty = group_advantages(tensor(), torch.zeros(0, dtype=torch.long))
    assert (empty.values.tolist(), empty.unscored, empty.zero_spread) == ([], 0, 0.0)


def test_trn_01_a_group_without_spread_teaches_nothing_but_what_the_kl_penalty_does() -> None:
    rewards, groups = tensor(1, 1, 1, 1, 1, 0, 0, 1), torch.tensor([0] * 4 + [1] * 4)
    advantages = group_advantages(rewards, groups)
    assert advantages.values[:4].tolist() == [0, 0, 0, 0]
    assert advantages.zero_spread == 0.5
    skipped = loss_mask(ones(8, 2), advantages)
    assert denominators(skipped) == (8, 4)
    kept = loss_mask(ones(8, 2), advantages, skip_zero_spread=False)
    assert denominators(kept) == (16, 8)

    weights = torch.full((8, 2), -1.0, requires_grad=True)
    reference = torch.full((8, 2), -2.0)

    def gradient(mask):
        losses = token_losses(weights, advantages.values, mask) + 0.04 * kl_penalty(weights, reference, mask)
        reduced(losses, mask, denominators(mask)).backward()
        found, weights.grad = weights.grad[:4].clone(), None
        return found

    assert gradient(skipped).abs().max() == 0
    # d/dx 0.04 (exp(-2 - x) - (-2 - x) - 1) at x = -1, over 16 tokens
    torch.testing.assert_close(gradient(kept), torch.full((4, 2), 0.04 * (1 - math.exp(-1)) / 16))


def test_trn_01_rewards_that_differ_by_rounding_are_the_same() -> None:
    for scale in ("sample", "population", "none"):
        rewards = tensor(0.1 + 0.1 + 0.1, 0.3, 0.3, 0.3)
        found = group_advantages(rewards, torch.zeros(4, dtype=torch.long), scale=scale, epsilon=0.0)
        assert rewards[0] != rewards[1]
        assert found.values.tolist() == [0, 0, 0, 0]
        assert not found.informative.any()


def test_trn_03_an_answer_without_a_score_moves_no_baseline_and_is_not_trained_on() -> None:
    rewards = tensor(1, NAN, 0, NAN, 0.4, NAN, NAN, NAN, NAN, NAN, NAN, NAN)
    groups = torch.arange(3).repeat_interleave(4)
    sample = group_advantages(rewards, groups)
    assert sample.values[:4].tolist() == pytest.approx([0.70701, 0, -0.70701, 0], abs=1e-5)
    population = group_advantages(rewards, groups, scale="population")
    assert population.values[:4].tolist() == pytest.approx([0.99980, 0, -0.99980, 0], abs=1e-5)
    assert sample.values[4:].tolist() == [0] * 8
    assert (sample.unscored, sample.zero_spread) == (9, pytest.approx(2 / 3))
    for skip in (True, False):
        assert not loss_mask(ones(12, 1), sample, skip_zero_spread=skip)[[1, 3, 5, 6, 7, 8, 9, 10, 11]].any()


def test_trn_03_an_answer_that_one_of_two_reward_functions_does_not_score_is_not_scored() -> None:
    both = Weighted(parts={"a": (lambda t: 1.0, 1.0), "b": (lambda t: t.action["b"], 1.0)})
    scores = [both(Transition(state="", action={"b": b})) for b in (1.0, None, 0.0)]
    rewards = tensor(*(NAN if score is None else score for score in scores))
    found = group_advantages(rewards, torch.zeros(3, dtype=torch.long), scale="none")
    assert (found.values.tolist(), found.unscored) == ([0.25, 0, -0.25], 1)


# ---- Masks and answers that were cut off


def test_only_tokens_that_the_policy_sampled_are_trained_on() -> None:
    """Prompt, answer, a tool's output, answer, padding: TokenTrace.mask says which is which."""
    sampled = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0]], dtype=torch.uint8)
    advantages = group_advantages(tensor(1, 0), torch.zeros(2, dtype=torch.long))
    mask = loss_mask(sampled, advantages)
    assert mask.tolist() == sampled.bool().tolist()
    losses = torch.where(sampled.bool(), 1.0, torch.tensor(1e30))
    assert reduced(losses, mask, denominators(mask)).item() == 1.0


def test_trn_04_a_cut_answer_is_in_no_denominator_but_in_the_lengths() -> None:
    sampled = torch.arange(10) < torch.tensor([[4], [10]])
    truncated = torch.tensor([False, True])
    advantages = group_advantages(tensor(1, 0), torch.zeros(2, dtype=torch.long))
    mask = loss_mask(sampled, advantages, truncated=truncated)
    assert reduced(torch.ones(2, 10), mask, denominators(mask)).item() == 1.0
    assert answer_lengths(sampled, truncated) == (7.0, 10, 0.5)
    trained_on = loss_mask(sampled, advantages, truncated=truncated, truncation=Truncation(masked=False))
    assert denominators(trained_on) == (14, 2)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Truncation(), [1.0, 1.0, 1.0]),
        (Truncation(reward="zero"), [1.0, 1.0, 0.0]),
        (Truncation(reward="soft", limit=10, margin=4), [1.0, 0.5, 0.0]),  # 4 <= 6: none; (6 - 8) / 4; (6 - 10) / 4
    ],
)
def test_trn_04_the_three_policies_for_the_reward_of_a_cut_answer(policy: Truncation, expected: list[float]) -> None:
    found = truncated_rewards(tensor(1, 1, 1), torch.tensor([4, 8, 10]), torch.tensor([False, False, True]), policy)
    assert found.tolist() == expected


def test_no_policy_makes_a_score_of_none() -> None:
    for policy in (Truncation(), Truncation(reward="zero"), Truncation(reward="soft", limit=10, margin=4)):
        assert truncated_rewards(tensor(NAN), torch.tensor([10]), torch.tensor([True]), policy).isnan().all()


def test_the_soft_punishment_needs_to_know_the_limit() -> None:
    with pytest.raises(ValueError, match="limit and margin"):
        Truncation(reward="soft", limit=10)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
def test_trn_04_a_step_whose_answers_were_all_cut_is_empty_and_its_loss_is_0(how: str) -> None:
    advantages = group_advantages(tensor(1, 0), torch.zeros(2, dtype=torch.long))
    mask = loss_mask(ones(2, 3), advantages, truncated=torch.tensor([True, True]))
    step = denominators(mask)
    assert step.empty
    new = torch.full((2, 3), -1.0, requires_grad=True)
    loss = reduced(token_losses(new, advantages.values, mask), mask, step, how=how, divisor=3)
    loss.backward()
    assert loss.item() == 0.0
    assert new.grad.abs().max() == 0


# ---- Reduction


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize(
    ("how", "expected"), [("token_mean", 0.4375), ("sequence_mean", 0.775), ("constant", 0.109375)]
)
def test_trn_06_loss_and_gradient_do_not_depend_on_how_a_step_is_split(how: str, expected: float, micro: int) -> None:
    mask = torch.arange(10) < torch.tensor([[2], [2], [2], [10]])
    losses = torch.where(torch.arange(4)[:, None] < 3, 1.0, 0.1).expand(4, 10).clone().requires_grad_()
    step = denominators(mask)
    parts = [
        reduced(losses[rows], mask[rows], step, how=how, divisor=16) for rows in torch.arange(4).split(micro)
    ]  # 6 / 64 + 1 / 64 for the constant one
    assert sum(part.item() for part in parts) == pytest.approx(expected)
    sum(parts).backward()
    each = {  # by how much the loss changes with a token's, for a short answer and for the long one
        "token_mean": (1 / 16, 1 / 16),
        "sequence_mean": (1 / 8, 1 / 40),
        "constant": (1 / 64, 1 / 64),
    }[how]
    by_hand = torch.where(mask, torch.tensor([each[0]] * 3 + [each[1]])[:, None], 0.0)
    torch.testing.assert_close(losses.grad, by_hand, atol=1e-6, rtol=0)


def test_the_constant_reduction_needs_its_divisor() -> None:
    with pytest.raises(ValueError, match="divisor of at least 1"):
        reduced(torch.ones(1, 1), ones(1, 1), denominators(ones(1, 1)), how="constant")


# ---- Losses


def losses_of(ratio: float, advantage: float, **settings: float) -> tuple[float, float]:
    """The loss of one token whose probability is `ratio` times the old one, and its gradient by the log-probability."""
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    surrogate = Surrogate(**settings)
    loss = token_losses(new, tensor(advantage), ones(1, 1), recomputed=old, behaviour=old, surrogate=surrogate)
    loss.sum().backward()
    return loss.item(), new.grad.item()


@pytest.mark.parametrize("old", ["recompute", "behaviour", "decoupled"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # within: -r A, and d r / d log π = r
        (1.5, 2.0, -2.56, 0.0),  # clipped at 1.28
        (0.5, 2.0, -1.0, -1.0),  # less likely though good: never clipped
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # likelier though bad: never clipped
    ],
)
def test_the_ratio_is_clipped_low_and_high(
    old: str, ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert losses_of(ratio, advantage, old=old) == pytest.approx((loss, gradient))


@pytest.mark.parametrize(("ratio", "loss", "gradient"), [(2.9, 5.8, 5.8), (50.0, 6.0, 0.0), (0.5, 1.6, 0.0)])
def test_the_dual_clip_bounds_the_punishment_of_what_became_likelier(
    ratio: float, loss: float, gradient: float
) -> None:
    assert losses_of(ratio, -2.0, dual=3.0) == pytest.approx((loss, gradient))
    assert losses_of(1.5, 2.0, dual=3.0) == losses_of(1.5, 2.0)


def test_shaped_ratios_are_never_clipped_and_favour_what_is_unlikely() -> None:
    for ratio in (0.1, 1.0, 5.0):
        slope = 0.1 * ratio / (ratio + 0.1) ** 2  # d f / d log w = w f'(w)
        assert losses_of(ratio, 2.0, old="shaped") == pytest.approx((-2 * ratio / (ratio + 0.1), -2 * slope))


def modes(old: str, **given: torch.Tensor) -> float:
    """The loss at π = 0.44, with advantage 1."""
    new = torch.tensor([[math.log(0.44)]], dtype=torch.float64)
    return token_losses(new, tensor(1), ones(1, 1), surrogate=Surrogate(old=old), **given).item()


def test_each_mode_compares_with_its_own_policy() -> None:
    start, sampler = (torch.tensor([[math.log(p)]], dtype=torch.float64) for p in (0.4, 0.16))
    assert modes("recompute", recomputed=start, behaviour=sampler) == pytest.approx(-1.1)
    assert modes("behaviour", recomputed=start, behaviour=sampler) == pytest.approx(-1.28)  # 2.75, clipped
    assert modes("shaped", recomputed=start, behaviour=sampler) == pytest.approx(-2.75 / 2.85)
    assert modes("decoupled", recomputed=start, behaviour=sampler) == pytest.approx(-2.5 * 1.1)
    rare = torch.tensor([[math.log(0.04)]], dtype=torch.float64)
    assert modes("decoupled", recomputed=start, behaviour=rare) == pytest.approx(-5 * 1.1)  # 10, truncated at 5


def test_in_the_first_update_of_a_step_nothing_needs_to_be_recomputed() -> None:
    new = torch.full((1, 1), -1.0, requires_grad=True)
    loss = token_losses(new, tensor(2), ones(1, 1))
    loss.sum().backward()
    assert (loss.item(), new.grad.item()) == (-2.0, -2.0)


def test_a_missing_log_probability_is_never_used_and_never_spoils_what_is_masked() -> None:
    new = torch.full((1, 3), -1.0, requires_grad=True)
    recorded = torch.tensor([[-1.0, NAN, -math.inf]])
    mask = torch.tensor([[True, False, False]])
    for old in ("behaviour", "shaped", "decoupled"):
        token_losses(new, tensor(1), mask, behaviour=recorded, surrogate=Surrogate(old=old)).sum().backward()
        assert new.grad.isfinite().all()
        assert new.grad[0, 1:].tolist() == [0, 0]
        with pytest.raises(ValueError, match=f'old="{old}" needs the recorded log-probability'):
            token_losses(new, tensor(1), ones(1, 3), behaviour=recorded, surrogate=Surrogate(old=old))
        with pytest.raises(ValueError, match='use old="recompute"'):
            token_losses(new, tensor(1), mask, surrogate=Surrogate(old=old))


def test_what_stands_outside_the_mask_reaches_neither_loss_nor_gradient() -> None:
    new = torch.tensor([[-1.0, -800.0]], requires_grad=True)
    reference = torch.tensor([[-2.0, 0.0]])
    mask = torch.tensor([[True, False]])
    losses = token_losses(new, tensor(1), mask, recomputed=torch.tensor([[-1.0, 0.0]])) + kl_penalty(
        new, reference, mask
    )
    reduced(losses, mask, denominators(mask)).backward()
    assert new.grad.tolist() == [[pytest.approx(-1 + 1 - math.exp(-1)), 0.0]]


def test_the_kl_penalty_is_schulmans_k3() -> None:
    new, reference = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.5, -1.0]])
    found = kl_penalty(new, reference, ones(1, 2))
    assert found.tolist() == [[pytest.approx(math.exp(-0.5) + 0.5 - 1), 0.0]]


def test_its_mean_over_the_policys_own_tokens_is_the_divergence() -> None:
    policy, reference = tensor(0.5, 0.3, 0.2), tensor(0.2, 0.2, 0.6)
    estimates = kl_penalty(policy.log()[None], reference.log()[None], ones(1, 3))[0]
    assert (policy * estimates).sum().item() == pytest.approx(float((policy * (policy / reference).log()).sum()))


@pytest.mark.parametrize(
    "settings", [{"low": -0.1}, {"low": 1.1}, {"high": -0.1}, {"dual": 1.0}, {"limit": 0.0}, {"high": NAN}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Surrogate(**settings)


def test_trn_07_with_the_samplers_temperature_the_ratio_at_equal_weights_is_1() -> None:
    logits, chosen = torch.tensor([[[2.0, 1.0, 0.0]]]), torch.tensor([[0]])
    assert token_logprobs(logits, chosen).item() == pytest.approx(-0.40761, abs=1e-5)
    assert token_logprobs(logits, chosen, 0.6).item() == pytest.approx(-0.20257, abs=1e-5)
    with pytest.raises(ValueError, match="above 0"):
        token_logprobs(logits, chosen, 0.0)
