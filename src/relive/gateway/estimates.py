"""How many tokens a text is, learnt from what providers reported; for when a provider does not say.

The provider's own usage is the truth. An estimate is marked as one wherever it is stored. The measure is the length of
the request's or the answer's text; its ratio to tokens is learnt for each model, and starts at four characters a token.
"""

import math
from collections import OrderedDict
from typing import Literal

FIRST_RATIO = 4.0
"""Characters a token before anything is learnt."""

MOST_MODELS = 1_000
_MEMORY = 0.9  # weight of the past in the running ratio
_LEAST = 20  # tokens; of shorter texts too much is overhead

Part = Literal["prompt", "answer"]


class TokenEstimates:
    """Ratios of characters to tokens by model and part of the call."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, Part], float] = OrderedDict()

    def tokens(self, model: str | None, part: Part, characters: int) -> int:
        """An estimate: at least 1 for a text that is not empty."""
        return math.ceil(characters / self._ratios.get((model or "", part), FIRST_RATIO))

    def learn(self, model: str | None, part: Part, characters: int, tokens: int | None) -> None:
        """Takes what a provider counted for a text of this length; absurd ratios are not learnt from."""
        if tokens is None or tokens < _LEAST or not 0.2 <= characters / tokens <= 100:
            return
        key = (model or "", part)
        seen, known = characters / tokens, self._ratios.get(key)
        self._ratios[key] = seen if known is None else _MEMORY * known + (1 - _MEMORY) * seen
        self._ratios.move_to_end(key)
        if len(self._ratios) > MOST_MODELS:
            self._ratios.popitem(last=False)
