"""`TokenBudget`: batches that hold at most so many tokens, for models whose memory is counted in tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from relive.buffer.choices import check_row_by_row, choose
from relive.buffer.composites import epsilon_of
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import field, rows
from relive.buffer.native_selectors import Prioritized
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.slot_array import SlotArray


class TokenBudget(Selector):
    """Takes what another sampler draws, in random order, as long as the sum of tokens stays within a budget.

    ``sample(batch_size)`` gives at most `batch_size` experiences with at most `tokens` tokens. The batch ends before
    the first experience that does not fit; only one that is larger than the whole budget is passed over, since it would
    end every batch. So long experiences are drawn as often as the sampler means them to be.

    Args:
        tokens: Most tokens in a batch, at least 1.
        sampler: Draws the candidates, one by one; ``None``: `Prioritized` with its defaults.
        count: Tokens of one experience; ``None``: `token_count`.

    Raises:
        BufferSettingError: the budget is less than 1, or the sampler gives sequences or n-step returns.
    """

    roles = ("sampler",)

    def __init__(
        self, tokens: int, sampler: Selector | None = None, *, count: Callable[[Any], int] | None = None
    ) -> None:
        if tokens < 1:
            raise BufferSettingError(f"tokens is {tokens}; it must be at least 1.")
        self.tokens = tokens
        self.sampler: Selector = Prioritized() if sampler is None else sampler
        check_row_by_row("TokenBudget", self.sampler)
        self.alpha = self.sampler.alpha
        self.weights = self.sampler.weights
        self.follows = self.sampler.follows
        self._count = token_count if count is None else count
        self._known_id = SlotArray(np.int64, -1)  # whose count a slot holds
        self._known_count = SlotArray(np.int64, 0)

    def inner(self) -> Sequence[Selector]:
        """The sampler of the candidates."""
        return (self.sampler,)

    @property
    def epsilon(self) -> float:
        """What the inner sampler adds to an absolute TD error."""
        return epsilon_of(self.sampler)

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        self.sampler.bind(view)

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Asks the inner sampler."""
        self.sampler.check_new(experiences)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Tells the inner sampler."""
        self.sampler.insert(ids, priorities, experiences)

    def delete(self, ids: Ids) -> None:
        """Tells the inner sampler."""
        self.sampler.delete(ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Tells the inner sampler."""
        self.sampler.update(ids, priorities)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Tells the inner sampler."""
        self.sampler.change(ids, experiences)

    def select(self, count: int) -> Selection:
        """Up to `count` experiences within the budget."""
        drawn = choose(self.sampler, count)
        order = np.argsort(self.view.random(len(drawn.ids)), kind="stable")  # stratified draws come in order of slots
        sizes = self._sizes(drawn.ids)[order]
        order, sizes = order[sizes <= self.tokens], sizes[sizes <= self.tokens]
        order = order[: int(np.searchsorted(np.cumsum(sizes), self.tokens, side="right"))]
        return drawn.part(order, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """The inner sampler's state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back."""
        self.sampler.load_state_dict(state)

    def reset(self) -> None:
        """Tells the inner sampler."""
        self.sampler.reset()

    def _sizes(self, ids: Ids) -> Ids:
        slots = self.view.index.find(ids)
        unknown = np.unique(ids[self._known_id[slots] != ids])
        if len(unknown):
            places = self.view.index.find(unknown)
            self._known_count[places] = [self._count(item) for item in rows(self.view.experiences(unknown))]
            self._known_id[places] = unknown
        sizes: Ids = self._known_count[slots]
        return sizes


def token_count(experience: Any) -> int:
    """Tokens of one experience: its token trace, else what the provider counted, else an estimate from above.

    The estimate is one token for three bytes of the JSON of state and action (text takes about four).
    """
    trace = field(experience, "tokens")
    if trace is not None:
        ids = getattr(trace, "token_ids", trace)
        return int(ids) if isinstance(ids, int) else len(ids)
    usage = field(experience, "usage")
    if usage is not None:
        counted = [field(usage, name) for name in ("input_tokens", "output_tokens")]
        if None not in counted:
            return int(sum(counted))
    if isinstance(experience, Mapping) and "action" not in experience:
        text = dict(experience)
    else:
        text = {"state": field(experience, "state"), "action": field(experience, "action")}
    return len(msgspec.json.encode(text, enc_hook=_as_json)) // 3 + 1


def _as_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)
