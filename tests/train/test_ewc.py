"""Importances and penalties: the worked example by hand, the rest against one gradient at a time."""

import copy
import math

import pytest
import torch

from relive.train.ewc import SAMPLES, STRENGTH, Ewc, fisher_diagonal
from relive.train.regularizers import KlAnchor, Regularizer, ReplayQuota


class Logistic(torch.nn.Module):
    """p(y = 1 | x) = sigmoid(w · x)."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def likelihoods(model, batch):
    x, y = batch
    return -torch.nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="none")


BOTH = (torch.tensor([[1.0], [1.0]]), torch.tensor([1.0, 0.0]))


def split(x, y, size):
    return list(zip(x.split(size), y.split(size), strict=True))


def test_trn_11_importance_is_the_mean_of_squared_gradients_not_the_square_of_their_mean() -> None:
    """At w = 0 the two gradients are +0.5 and -0.5: their squares' mean is 0.25, their mean's square 0."""
    assert fisher_diagonal(Logistic(0.0), [BOTH], likelihoods)["w"].tolist() == [0.25]


def test_trn_11_importance_does_not_depend_on_how_samples_are_split() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 3, generator=generator), torch.randint(2, (64,), generator=generator).float()
    weights = torch.tensor([0.3, -0.2, 0.1])
    by_hand = (((y - (x @ weights).sigmoid())[:, None] * x) ** 2).mean(0)  # d log p / d w = (y - p) x
    for size in (1, 2, 7, 32, 64):
        found = fisher_diagonal(Logistic(0.3, -0.2, 0.1), split(x, y, size), likelihoods)["w"]
        torch.testing.assert_close(found, by_hand, atol=1e-6, rtol=0)


def test_no_more_samples_are_used_than_asked_for() -> None:
    x, y = torch.tensor([[1.0], [1.0], [100.0]]), torch.tensor([1.0, 0.0, 1.0])
    for size in (1, 2, 3):
        assert fisher_diagonal(Logistic(0.0), split(x, y, size), likelihoods, samples=2)["w"].tolist() == [0.25]
    assert (SAMPLES, STRENGTH) == (100, 1000.0)


def test_trn_11_a_model_is_afterwards_as_it_was() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )
    model[0].bias.requires_grad_(False)
    model[2].eval()  # a part with a mode of its own
    model[3].weight.grad = torch.full((1, 4), 7.0)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()

    def of(found, batch):
        assert not any(part.training for part in found.modules())
        return found(batch)[:, 0]

    with torch.no_grad():
        fisher = fisher_diagonal(model, [torch.ones(3, 2)], of)
    assert set(fisher) == {"0.weight", "1.weight", "1.bias", "3.weight", "3.bias"}, "frozen weights are absent"
    assert [part.training for part in model] == [True, True, False, True]
    assert model[3].weight.grad.tolist() == [[7.0] * 4]
    assert model[0].weight.grad is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_weight_that_no_sample_depends_on_has_no_importance() -> None:
    model = torch.nn.ModuleDict({"used": Logistic(0.0), "unused": Logistic(1.0)})
    found = fisher_diagonal(model, [BOTH], lambda m, batch: likelihoods(m["used"], batch))
    assert {name: value.tolist() for name, value in found.items()} == {"used.w": [0.25], "unused.w": [0.0]}


def test_what_cannot_be_measured_is_refused() -> None:
    frozen = Logistic(0.0).requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        fisher_diagonal(frozen, [BOTH], likelihoods)
    with pytest.raises(ValueError, match="no samples"):
        fisher_diagonal(Logistic(0.0), [], likelihoods)
    with pytest.raises(ValueError, match="one a sample"):
        fisher_diagonal(Logistic(0.0), [BOTH], lambda m, b: likelihoods(m, b).mean())
    with pytest.raises(ValueError, match="gradient by w is not finite"):
        fisher_diagonal(Logistic(math.nan), [BOTH], likelihoods)


def test_trn_11_the_penalty_is_0_at_the_anchor_and_grows_with_the_square_of_the_distance() -> None:
    model, ewc = Logistic(0.0), Ewc()
    assert ewc.penalty(model).item() == 0.0, "nothing is anchored yet"
    ewc.anchor(model, [BOTH], likelihoods)
    assert ewc.penalty(model).item() == 0.0
    for distance in (0.1, 0.2, -0.4):
        moved = Logistic(distance)
        penalty = ewc.penalty(moved)
        penalty.backward()
        assert penalty.item() == pytest.approx(0.5 * 1000 * 0.25 * distance**2)
        assert moved.w.grad.item() == pytest.approx(1000 * 0.25 * distance)


def test_trn_11_the_same_task_twice_is_held_twice_as_strongly() -> None:
    for decay, held in ((None, 2.0), (1.0, 2.0), (0.5, 1.5), (0.0, 1.0)):
        model, ewc = Logistic(0.0), Ewc(strength=2.0, decay=decay)
        for _ in range(2):
            ewc.anchor(model, [BOTH], likelihoods)
        assert ewc.penalty(model).item() == 0.0
        assert ewc.penalty(Logistic(1.0)).item() == pytest.approx(held * 0.25)
        assert len(ewc.anchors) == (2 if decay is None else 1)


def test_each_task_has_its_own_anchor_and_the_online_variant_only_the_newest() -> None:
    several, online = Ewc(strength=2.0), Ewc(strength=2.0, decay=1.0)
    for ewc in (several, online):
        ewc.anchor(Logistic(0.0), [BOTH], likelihoods)
        ewc.anchor(Logistic(2.0), [BOTH], likelihoods)
    p = 1 / (1 + math.exp(-2))
    second = ((1 - p) ** 2 + p**2) / 2  # gradients 1 - p and -p
    assert several.penalty(Logistic(1.0)).item() == pytest.approx(0.25 + second)
    assert online.penalty(Logistic(1.0)).item() == pytest.approx(0.25 + second)
    assert several.penalty(Logistic(2.0)).item() == pytest.approx(0.25 * 4)
    assert online.penalty(Logistic(2.0)).item() == 0.0


def test_an_anchor_does_not_move_with_the_model() -> None:
    model, ewc = Logistic(0.0), Ewc(strength=2.0)
    ewc.anchor(model, [BOTH], likelihoods)
    with torch.no_grad():
        model.w += 1.0
    assert ewc.penalty(model).item() == pytest.approx(0.25)


def test_anchors_are_saved_and_loaded() -> None:
    ewc, again = Ewc(strength=2.0), Ewc(strength=2.0)
    ewc.anchor(Logistic(0.5), [BOTH], likelihoods)
    again.load_state_dict(ewc.state_dict())
    assert again.penalty(Logistic(1.0)).item() == ewc.penalty(Logistic(1.0)).item() > 0


def test_a_model_without_the_anchored_weights_is_refused() -> None:
    ewc = Ewc()
    ewc.anchor(Logistic(0.0), [BOTH], likelihoods)
    with pytest.raises(ValueError, match="anchored parameter w is not in this model"):
        ewc.penalty(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"samples": 0}, {"decay": 1.5}, {"strength": math.nan}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Ewc(**settings)


def two_tasks(regularizer: Regularizer | None) -> tuple[float, float]:
    """Two tasks that share a feature: loss on the first and on the second, after the second was learnt."""
    first = (torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1.0, 1.0]))
    second = (torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([0.0, 0.0]))
    model = Logistic(0.0, 0.0)

    def learn(batch, held):
        for _ in range(200):
            loss = -likelihoods(model, batch).mean() + (held.penalty(model) if held else 0.0)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                model.w -= 0.1 * model.w.grad

    learn(first, None)
    if isinstance(regularizer, Ewc):
        regularizer.anchor(model, [first], likelihoods)
    if isinstance(regularizer, KlAnchor):
        regularizer.reference.load_state_dict(model.state_dict())
    learn(second, regularizer)
    return tuple(-likelihoods(model, batch).mean().item() for batch in (first, second))


FIRST = (torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]))


def binary(model, batch):
    """Logits of the two answers."""
    found = model(batch[0])
    return torch.stack([torch.zeros_like(found), found], -1)


@pytest.mark.parametrize(
    "regularizer",
    [
        Ewc(strength=100.0),
        KlAnchor(Logistic(0.0, 0.0), [FIRST], binary, weight=10.0),
        ReplayQuota({"first": 1}, lambda task, count: FIRST, lambda m, b: -likelihoods(m, b).mean()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_regularizer_keeps_the_first_task_while_the_second_is_learnt(regularizer: Regularizer) -> None:
    plain = two_tasks(None)
    held = two_tasks(regularizer)
    assert plain[0] > 0.7, "plain training unlearns it: worse than guessing"
    assert held[0] < 0.2
    assert held[1] < 0.3


def test_the_kl_anchor_is_the_divergence_from_the_reference_batch_after_batch() -> None:
    anchor = KlAnchor(Logistic(0.0), [(torch.tensor([[1.0]]),), (torch.tensor([[2.0]]),)], binary, weight=0.5)
    model = Logistic(1.0)

    def divergence(logit):  # KL of a fair coin from one that falls with sigmoid(logit)
        p = 1 / (1 + math.exp(-logit))
        return 0.5 * math.log(0.5 / p) + 0.5 * math.log(0.5 / (1 - p))

    for logit in (1.0, 2.0, 1.0):
        penalty = anchor.penalty(model)
        assert penalty.item() == pytest.approx(0.5 * divergence(logit))
    penalty.backward()
    assert model.w.grad.item() == pytest.approx(0.5 * (1 / (1 + math.exp(-1)) - 0.5))  # p - 0.5, weighted
    assert anchor.reference.w.grad is None
    again = KlAnchor(anchor.reference, anchor.batches, binary, weight=0.5)
    again.load_state_dict(anchor.state_dict())
    assert again.penalty(model).item() == pytest.approx(0.5 * divergence(2.0))


def test_a_quota_weighs_tasks_by_their_experiences() -> None:
    drawn = []

    def draw(task, count):
        drawn.append((task, count))
        return {"a": 1.0, "b": 5.0}[task]

    quota = ReplayQuota({"a": 3, "b": 1}, draw, lambda m, value: value * m.w.sum(), weight=2.0)
    assert quota.penalty(Logistic(1.0)).item() == pytest.approx(2 * (3 * 1 + 1 * 5) / 4)
    assert drawn == [("a", 3), ("b", 1)]
    assert ReplayQuota({}, draw, lambda m, value: m.w.sum()).penalty(Logistic(1.0)).item() == 0.0


def test_a_regularizer_without_anything_to_hold_on_to_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        KlAnchor(Logistic(0.0), [], binary)
    with pytest.raises(ValueError, match="quota of task 'a' is 0"):
        ReplayQuota({"a": 0}, lambda task, count: None, lambda m, b: m.w.sum())
