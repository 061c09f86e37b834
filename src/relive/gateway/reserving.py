"""What a call may cost at most: reserved in its budgets before it is forwarded, settled when it is over."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from relive.experience import Usage
from relive.gateway.budget import BudgetExceededError
from relive.gateway.refusals import RefusalError
from relive.gateway.routes import Model

if TYPE_CHECKING:
    from relive.gateway.proxy import Gateway


class Reserving:
    """What one call has to do with budgets.

    Args:
        gateway: Whose budgets and prices they are.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._reservation: str | None = None

    async def reserve(self, candidates: Iterable[Model], usage: Usage, scopes: list[str]) -> None:
        """Reserves what the dearest of the models that may answer would cost.

        Raises:
            RefusalError: it does not fit into a budget.
        """
        gateway = self._gateway
        if not gateway.budgets:
            return
        costs = [gateway.prices.cost(usage, one.model, own=one.price, base_url=one.endpoint.url) for one in candidates]
        cost = max((known for known in costs if known is not None), default=None)
        admit, wait = gateway.budgets.admit, gateway.budgets.reserve
        try:
            self._reservation = admit(scopes, cost) or await asyncio.to_thread(wait, scopes, cost)
        except BudgetExceededError as error:
            raise RefusalError(str(error), status=429, kind="rate_limit_error", code="budget_exceeded") from error
        gateway.keep_books()

    def settle(self, cost: int | None) -> None:
        """Counts what the call cost, the first time it is told; ``None``: not known, so what was reserved."""
        if self._reservation is not None and self._gateway.budgets is not None:
            self._gateway.budgets.book(self._reservation, cost)
            self._gateway.keep_books()
        self._reservation = None
