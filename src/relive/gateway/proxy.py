"""The gateway itself: an ASGI application for ``/v1/*`` whose every call is recorded.

It fails open: whatever goes wrong with recording, the agent's traffic flows on, and the failure is counted. Its parts
decide (`routes`), count (`budget`, `pacing`), read (`capture`) and keep (`recorder`, `journal`); here is what they
share for as long as the gateway lives. One call is a `relive.gateway.call.Call`.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from relive.experience import Feedback, Transition
from relive.gateway.access import Access
from relive.gateway.budget import FLUSH, Budgets
from relive.gateway.cache import AnswerCache
from relive.gateway.call import Call
from relive.gateway.client import Client
from relive.gateway.conversations import Conversations
from relive.gateway.estimates import TokenEstimates
from relive.gateway.headers import to_client
from relive.gateway.journal import Journal
from relive.gateway.pacing import Pacer
from relive.gateway.recorder import Recorder
from relive.gateway.refusals import RefusalError
from relive.gateway.request import CallRequest
from relive.gateway.routes import Cooldowns, Model, Routes
from relive.gateway.upstreams import new_session
from relive.llm.pricing import PriceTable
from relive.llm.retry import RetryPolicy
from relive.rewards import RewardFunction, evaluate
from relive.storage.record import NEVER_LEARNT

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Prepare = Callable[[CallRequest, str, str, Mapping[str, str]], Awaitable[tuple[CallRequest, dict[str, Any]]]]
"""A hook that may change a request before it is forwarded (lessons put into its prompt). It is given the request, whose
it is, its episode and its headers, and gives the request to forward and facts for the record about what it did."""

MOST_BACKGROUND = 1_000
"""Tasks beside calls (rewards, late next states) at a time; beyond, new ones are left out and counted."""

MOST_ANSWERS = 20_000
"""Answers whose ids are remembered."""

_log = logging.getLogger("relive.gateway")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may ask of the gateway.

    Attributes:
        request_bytes: The largest request.
        concurrent: How many calls at a time.
        answer_tokens: How long an answer is taken to become for a budget, where the client sets no limit.
        drain: Whether an answer is read to its end, for the record, when the client has left.
        with_tokens: Whether token ids and log-probabilities are recorded where the server gives them.
    """

    request_bytes: int = 32 << 20
    concurrent: int = 512
    answer_tokens: int = 2_048
    drain: bool = False
    with_tokens: bool = True


class GatewayStats(msgspec.Struct):
    """Counts since the start.

    Attributes:
        calls: By status of the record (complete, failed …) or ``refused``.
        in_flight: Calls under way.
        left_out: Background work that was left out because there was too much.
    """

    calls: dict[str, int] = msgspec.field(default_factory=dict)
    in_flight: int = 0
    left_out: int = 0


@dataclass(kw_only=True)
class Gateway:
    """Everything that calls share, and the ASGI application that serves them.

    Attributes:
        routes: Where calls go.
        access: Who may call.
        recorder: Records them.
        journal: Keeps what is under way.
        prices: What models cost.
        budgets: What may be spent; ``None``: there is no limit.
        cache: Answers that are given again; ``None``: none are.
        policy: How often an upstream is tried.
        limits: What a client may ask.
        rewards: Rewards given to each recorded call, by name.
        prepare: The hook that may change requests; ``None``: none.
        last_step: Looks up an episode's newest step in the store, for episodes from before the start.
        snapshot: The hash of what holds now; ``None``: none is kept.
        agent: Whose calls they are if neither the client nor its key says so.
        clock: Monotonic seconds.
        answers: The uid of each recent answer's record, by the provider's id of the answer.
    """

    routes: Routes
    access: Access
    recorder: Recorder
    journal: Journal
    prices: PriceTable
    budgets: Budgets | None = None
    cache: AnswerCache | None = None
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    limits: Limits = field(default_factory=Limits)
    rewards: dict[str, RewardFunction] = field(default_factory=dict)
    prepare: Prepare | None = None
    last_step: Callable[[str], int | None] | None = None
    snapshot: str | None = None
    agent: str = "default"
    clock: Callable[[], float] = time.perf_counter
    conversations: Conversations = field(default_factory=Conversations)
    estimates: TokenEstimates = field(default_factory=TokenEstimates)
    stats: GatewayStats = field(default_factory=GatewayStats)

    def __post_init__(self) -> None:
        self.cooldowns = Cooldowns(self.clock)
        self.answers: OrderedDict[str, bytes] = OrderedDict()
        self.rng = random.Random()
        self._pacers: dict[str, Pacer] = {}
        self._session: aiohttp.ClientSession | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._booking: asyncio.Task[None] | None = None
        self._scoring = asyncio.Semaphore(8)
        self.recorder.stored = self._follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        client = Client(scope, receive, send)
        self.stats.in_flight += 1
        try:
            await self._serve(client)
        except RefusalError as refusal:
            self.count("refused")
            if not client.left:
                await client.refuse(refusal)
        except Exception:  # a fault of the gateway's own
            _log.exception("A call failed inside the gateway")
            if client.begun:
                raise  # the server breaks the connection off, so that the client can tell
            await client.refuse(
                RefusalError(
                    "The gateway failed to serve this call; its log says why.",
                    status=500,
                    kind="api_error",
                    code="gateway_error",
                )
            )
        finally:
            self.stats.in_flight -= 1

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections to upstreams."""
        if self._session is None:
            self._session = new_session()
        return self._session

    def pacer(self, model: Model) -> Pacer:
        """The pace of one model."""
        pacer = self._pacers.get(model.name)
        if pacer is None:
            pacer = self._pacers[model.name] = Pacer(model.rpm, model.tpm, clock=self.clock)
        return pacer

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside the calls; what goes wrong with it is logged."""
        if len(self._background) >= MOST_BACKGROUND:
            self.stats.left_out += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def keep_books(self) -> None:
        """Has the ledger follow what calls reserve and cost, for as long as there is anything to follow."""
        if self.budgets is not None and (self._booking is None or self._booking.done()):
            self._booking = asyncio.create_task(_book(self.budgets))
            self._booking.add_done_callback(self._finished)

    def _follow(self, transition: Transition, number: int) -> None:
        """A record is stored; now what belongs to it can follow."""
        if self.rewards and NEVER_LEARNT not in transition.tags:
            self.beside(self._score(transition, number))

    async def _score(self, transition: Transition, number: int) -> None:
        """Gives a recorded call the rewards that are set up."""
        async with self._scoring:
            for name, reward in self.rewards.items():
                value = await evaluate(reward, readable(transition))
                if value is not None:
                    source = f"relive:{name}"
                    await self.recorder.feedback(Feedback(experience_id=number, source=source, key=name, reward=value))

    def remember(self, response_id: str | None, uid: bytes) -> None:
        """Remembers which record an answer's own id belongs to, for feedback that names it."""
        if response_id is not None:
            self.answers[response_id] = uid
            if len(self.answers) > MOST_ANSWERS:
                self.answers.popitem(last=False)

    def count(self, status: str) -> None:
        """Counts a call by how it ended."""
        self.stats.calls[status] = self.stats.calls.get(status, 0) + 1

    async def close(self) -> None:
        """Waits for the background work and for what is being recorded."""
        if self._background:
            await asyncio.wait(tuple(self._background), timeout=10.0)
        if self._booking is not None:
            self._booking.cancel()
        if self.budgets is not None:
            await asyncio.to_thread(self.budgets.flush)
        await self.recorder.close()
        self.journal.close()
        if self._session is not None:
            await self._session.close()

    async def _serve(self, client: Client) -> None:
        if self.stats.in_flight > self.limits.concurrent:
            raise RefusalError(
                f"The gateway serves {self.limits.concurrent} calls at a time already. Try again in a moment.",
                status=503,
                kind="api_error",
                code="too_many_calls",
                retry=True,
            )
        if ".." in client.path.replace("\\", "/").split("/"):
            raise RefusalError(
                "The path leads upwards, out of the API; ask for it without a `..`.",
                status=400,
                kind="invalid_request_error",
                code="invalid_path",
            )
        caller = self.access.admit(client.headers, "call")
        body = await client.body(self.limits.request_bytes)
        if client.path == "/v1/models" and client.method == "GET" and not self.routes.takes_any_name:
            listed = self.routes.listed()
            headers = to_client([], length=len(listed), extra={"content-type": "application/json"})
            await client.begin(200, headers)
            await client.pass_on(listed, last=True)
            return
        await Call(self, client, caller, CallRequest(client.path, body)).run()

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("Something beside a call failed: %s", task.exception())


async def _book(budgets: Budgets) -> None:
    """Brings the ledger up to date whenever that is due, until no call has anything reserved."""
    while budgets.in_use:
        await asyncio.sleep(FLUSH)
        if budgets.due:
            await asyncio.to_thread(budgets.flush)


def readable(transition: Transition) -> Transition:
    """The transition with its raw parts parsed, for functions that look into it."""
    parts = {
        name: msgspec.json.decode(msgspec.json.encode(getattr(transition, name)))
        for name in ("state", "action", "next_state")
    }
    return msgspec.structs.replace(transition, **parts)
