"""One call through the gateway, from its first byte to its record."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from relive.errors import ReliveError
from relive.experience import Usage, now
from relive.gateway import headers as header_rules
from relive.gateway.access import Caller
from relive.gateway.cache import HEADER as CACHE_HEADER
from relive.gateway.capture import LARGEST_ANSWER, Capture, Status
from relive.gateway.client import Client
from relive.gateway.conversations import Said, Step
from relive.gateway.credentials import Credentials
from relive.gateway.fresh import fresh_id
from relive.gateway.identity import Identity, IdentityError, read_identity
from relive.gateway.journal import Entry, Intent
from relive.gateway.pacing import Passage
from relive.gateway.recorder import Kept
from relive.gateway.refusals import RefusalError, refusal_body
from relive.gateway.repeating import Repeating
from relive.gateway.request import CallRequest
from relive.gateway.reserving import Reserving
from relive.gateway.routes import Model, Next, Plan, RouteError
from relive.gateway.upstreams import Attempt, address, described, failed_answer, timed_out
from relive.llm.errors import UpstreamError, UpstreamTimeoutError
from relive.llm.records import Attempt as Tried

if TYPE_CHECKING:
    from relive.gateway.proxy import Gateway

_log = logging.getLogger("relive.gateway")


class Call:
    """One call to a model.

    Args:
        gateway: What it shares with other calls.
        client: Who asked.
        caller: What the client may do.
        request: What it asks for.
    """

    def __init__(self, gateway: "Gateway", client: Client, caller: Caller, request: CallRequest) -> None:
        self._gateway = gateway
        self._client = client
        self._caller = caller
        self._asked = self._request = request
        self._recorded = client.method == "POST"
        self._uid = fresh_id()
        self._started = gateway.clock()
        self._upstream_ms = 0.0
        self._tried: list[Tried] = []
        self._reserving = Reserving(gateway)
        self._passage: Passage | None = None
        self._cost: int | None = None
        self._entry: Entry | None = None
        self._left_early = False
        self._over = False
        self._limit: asyncio.Timeout | None = None
        self._ended: Status | None = None
        cache = gateway.cache
        self._repeating = None if cache is None else Repeating(cache, client, caller)

    async def run(self) -> None:
        """Serves it.

        Raises:
            RefusalError: it is not forwarded; the record says why.
        """
        identity = self._identity()
        await self._place(identity)
        facts = await self._prepare()
        self._capture = Capture(
            self._request,
            identity,
            self._step,
            agent=self._agent,
            created_at=now(),
            estimates=self._gateway.estimates,
            with_tokens=self._gateway.limits.with_tokens,
        )
        self._capture.note(snapshot=self._gateway.snapshot, **facts)
        self._measure()
        try:
            candidates = self._candidates()
            self._credentials = Credentials(self._client, own=self._caller.own_credentials, meant_for=candidates[0])
            if await self._repeat():
                return
            await self._reserve(candidates)
        except RefusalError as refusal:
            self._capture.fail(str(refusal), refusal.code)
            refusal.headers = self._own_headers(await self._record("failed"))
            raise
        plan = Plan(
            candidates,
            self._gateway.cooldowns,
            self._gateway.policy,
            tokens=self._prompt_tokens + self._longest_answer,
            rng=self._gateway.rng,
            cools=self._request.understood,
        )
        if self._recorded:
            self._entry = self._gateway.journal.begin(self._uid, self._intent(identity, plan.model))
        watching = asyncio.create_task(self._watch())
        try:
            await self._follow(plan)
            if self._repeating is not None and self._ended == "complete":
                self._repeating.keep(self._uid)
        except Exception as error:
            self._limit = None
            if not self._over:
                self._capture.fail(f"The gateway itself failed: {type(error).__name__}.", "gateway")
                await self._record("interrupted" if self._client.begun else "failed")
            raise
        finally:
            watching.cancel()
            self._reserving.settle(None)  # nothing, unless the record could not be made

    # -- before it is forwarded -----------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        value = self._request.value
        try:
            identity = read_identity(
                self._client.headers,
                metadata=value("metadata"),
                user=value("user"),
                previous_response=value("previous_response_id"),
            )
        except IdentityError as error:
            raise RefusalError(str(error), status=400, kind="invalid_request_error", code="identity") from error
        self._agent = identity.agent or self._caller.agent or self._gateway.agent
        return identity

    async def _prepare(self) -> dict[str, Any]:
        """Lets the hook change the request; gives what it says of that. A hook that fails changes nothing."""
        if self._gateway.prepare is None or not self._request.understood:
            return {}
        try:
            self._request, facts = await self._gateway.prepare(
                self._request, self._agent, self._step.episode_id, self._client.headers
            )
        except ReliveError as error:
            return {"prepare_error": str(error)}
        return facts

    async def _place(self, identity: Identity) -> None:
        """Finds the episode and step, asking the store for an episode from before this start."""
        conversations, episode = self._gateway.conversations, identity.episode_id
        self._whose = f"{self._caller.name}:{self._agent}"
        look_up = self._gateway.last_step
        if episode is not None and look_up is not None and conversations.next_step(self._whose, episode) is None:
            with contextlib.suppress(ReliveError):
                last = await asyncio.to_thread(look_up, episode)
                if last is not None:
                    conversations.goes_on(self._whose, episode, last + 1)
        if not self._recorded:
            self._said, self._step = None, Step(self._uid.hex(), 0)
            return
        messages = self._request.messages()
        self._said = None if messages is None else Said(self._whose, messages)
        self._step = conversations.place(
            self._whose,
            self._said,
            episode_id=episode,
            step=identity.step,
            previous_response=identity.previous_response,
        )

    def _candidates(self) -> list[Model]:
        if self._request.dialect.name != "raw" and not self._request.understood and self._recorded:
            raise RefusalError(
                "The request's body is not a JSON object.",
                status=400,
                kind="invalid_request_error",
                code="invalid_json",
            )
        try:
            return self._gateway.routes.candidates(self._request.model)
        except RouteError as error:
            raise RefusalError(str(error), status=404, kind="not_found_error", code="model_not_found") from error

    async def _repeat(self) -> bool:
        """Answers with what the same request was answered before, where the cache is on and has it."""
        answer = self._repeating.find(self._request) if self._repeating is not None else None
        if answer is None:
            return False
        self._capture.repeat(answer.body, answer.content_type, answer.uid)
        own = self._own_headers(await self._record("complete"))
        extra = {**own, "content-type": answer.content_type, CACHE_HEADER: "hit"}
        await self._client.begin(200, header_rules.to_client([], length=len(answer.body), extra=extra))
        await self._client.pass_on(answer.body, last=True)
        return True

    async def _reserve(self, candidates: list[Model]) -> None:
        if self._recorded:
            most = self._prompt_tokens + self._prompt_tokens // 4  # others of its length may hold fewer tokens
            usage = Usage(input_tokens=most, output_tokens=self._answer_tokens)
            scopes = [f"agent:{self._agent}", *([f"key:{self._caller.name}"] if self._caller.name else [])]
            await self._reserving.reserve(candidates, usage, scopes)

    def _measure(self) -> None:
        """Estimates how long the prompt is, and one answer and all of them may become."""
        gateway, request = self._gateway, self._request
        self._prompt_tokens = gateway.estimates.tokens(request.model, "prompt", len(request.body))
        writes = request.dialect.writes
        self._longest_answer = (request.answer_limit() or gateway.limits.answer_tokens) if writes else 0
        self._answer_tokens = self._longest_answer * request.answers()

    def _intent(self, identity: Identity, model: Model) -> Intent:
        return Intent(
            upstream=described(model, with_key=False),
            drop_usage=model.asks_usage and self._request.needs_usage_asked(),
            path=self._request.path,
            body=self._request.body,
            identity=identity,
            place=self._step,
            agent=self._agent,
            created_at=self._capture.created_at,
            snapshot=self._gateway.snapshot,
        )

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notices when the client leaves; then the upstream is let go, unless answers are read to their end."""
        await self._client.gone()
        if self._over or self._capture.whole:
            return
        self._left_early = True
        if not self._gateway.limits.drain and self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _follow(self, plan: Plan) -> None:
        """Tries until there is an answer or the plan is at its end."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + plan.model.timeout
        following: Next | None = None
        while True:
            try:
                async with asyncio.timeout_at(self._deadline) as self._limit:
                    if following is not None:
                        await asyncio.sleep(following.wait)
                    self._began = self._gateway.clock()
                    following = await self._attempt(plan.model, plan)
                if following is None:
                    return
            except (UpstreamError, TimeoutError) as error:
                self._limit = None
                if self._left_early and not self._gateway.limits.drain:
                    await self._record("client_disconnected")
                    return
                failure = error if isinstance(error, UpstreamError) else timed_out(plan.model)
                if self._client.begun:
                    self._capture.fail(failure)
                    await self._record("interrupted")
                    return  # without an end: the server breaks the connection off, so that the client can tell
                following = self._after(plan, failure)
                if following is None:
                    await self._give_up(failure)
                    return
            if following.switched:
                self._deadline = loop.time() + following.wait + following.model.timeout

    def _after(self, plan: Plan, failure: UpstreamError) -> Next | None:
        """What follows a failure, which is noted."""
        model = plan.model
        following = plan.after(
            failure,
            self._deadline - asyncio.get_running_loop().time(),
            clients_key=self._credentials.refused(model, failure),
        )
        wait = following.wait if following is not None else 0.0
        tried = Tried(
            status=failure.status,
            kind=failure.kind,
            error=str(failure),
            latency_ms=(self._gateway.clock() - self._began) * 1000,
            waited_ms=wait * 1000,
            wait_reason=None if not wait else "backoff" if failure.retry_after is None else "hint",
            retry_after=failure.retry_after,
            request_id=failure.request_id,
        )
        self._tried.append(tried)
        self._capture.attempted(model.name, tried)
        return following

    async def _attempt(self, model: Model, plan: Plan) -> Next | None:
        """One try; gives what follows if it failed, ``None`` if the call is answered."""
        gateway, request, client = self._gateway, self._request, self._client
        await self._pace(model)
        asks = model.asks_usage and request.needs_usage_asked()
        self._capture.forwarded(described(model), drop_usage=asks)
        if self._entry is not None and self._tried:  # the first is in the intent
            self._entry.forwarded(described(model, with_key=False), drop_usage=asks)
        headers = header_rules.to_upstream(
            client.raw_headers,
            client.headers,
            model,
            clients_credentials=self._credentials.go_to(model),
            plain=asks or client.taken is not None,
        )
        body = request.sent(model=model.model, ask_for_usage=asks)
        url = address(model, client.sent_path, self._credentials.query(model))
        waiting = gateway.clock()
        try:
            attempt = await Attempt.start(gateway.session, model, client.method, url, headers, body)
        finally:
            self._upstream_ms += (gateway.clock() - waiting) * 1000
        async with attempt:
            self._capture.begin(attempt.status, attempt.content_type, attempt.content_encoding)
            if self._entry is not None:
                self._entry.began(attempt.status, attempt.content_type, attempt.content_encoding)
            if self._capture.streamed or not request.understood:
                return await self._stream(attempt, model, plan)
            return await self._whole(attempt, model, plan)

    async def _pace(self, model: Model) -> None:
        self._settle_pace()
        self._passage = await self._gateway.pacer(model).enter(
            self._caller.name or self._agent, self._prompt_tokens + self._answer_tokens
        )

    def _settle_pace(self) -> None:
        """Puts the tokens of the last try in place of their estimate."""
        if self._passage is not None:
            usage = self._capture.reader.usage
            counted = (usage.input_tokens, usage.output_tokens) if usage is not None else (None, None)
            if counted[0] is not None and counted[1] is not None:
                self._passage.tokens = counted[0] + counted[1]

    async def _whole(self, attempt: Attempt, model: Model, plan: Plan) -> Next | None:
        """An answer in one body: it goes out once its record is kept."""
        body: list[bytes] = []
        size = 0
        broken: UpstreamError | None = None
        try:
            while (piece := await self._next(attempt)) is not None:
                body.append(piece)
                size += len(piece)
                if size > LARGEST_ANSWER:
                    await self._client.begin(attempt.status, self._head(attempt, None))
                    await self._client.pass_on(b"".join(body))
                    await self._rest(attempt, plan)
                    return None
        except UpstreamError as error:
            broken = error
        self._capture.end()
        if broken is not None and not self._capture.reader.ended:
            raise broken  # a length header that promised more than there is does no harm to a whole answer
        failure = self._capture.reader.failure
        if failure is not None:
            following = self._after(plan, failed_answer(model, failure))
            if following is not None:
                return following
        else:
            plan.succeeded()
        kept = await self._record("complete" if failure is None else "failed")
        data = b"".join(body)
        await self._client.begin(attempt.status, self._head(attempt, len(data), kept))
        await self._client.pass_on(data, last=True)
        return None

    async def _stream(self, attempt: Attempt, model: Model, plan: Plan) -> Next | None:
        """An answer in pieces: each goes out as it comes."""
        length = None if self._capture.streamed else attempt.length
        held = b""
        while (piece := await self._next(attempt)) is not None:
            if not self._client.begun:
                failure = self._capture.reader.failure
                if failure is not None:
                    following = self._after(plan, failed_answer(model, failure))
                    if following is not None:
                        return following
                await self._client.begin(attempt.status, self._head(attempt, length))
            if length is not None:  # a client that knows the length ends with the last byte: that one waits
                held, piece = piece, held
            await self._client.pass_on(piece)
        if not self._client.begun:
            await self._client.begin(attempt.status, self._head(attempt, length))
        await self._finish_stream(plan, held)
        return None

    async def _rest(self, attempt: Attempt, plan: Plan) -> None:
        """What is left of an answer that is too long to be held."""
        while (piece := await self._next(attempt)) is not None:
            await self._client.pass_on(piece)
        await self._finish_stream(plan)

    async def _finish_stream(self, plan: Plan, held: bytes = b"") -> None:
        await self._client.pass_on(self._capture.end())
        status: Status = "complete" if self._capture.whole else "interrupted"
        if self._capture.reader.failure is not None:
            status = "failed"
        else:
            plan.succeeded()
        await self._record(status)
        await self._client.pass_on(held, last=True)

    async def _next(self, attempt: Attempt) -> bytes | None:
        """What of an answer goes to the client next, ``None`` at its end; the time it takes is the upstream's."""
        waiting = self._gateway.clock()
        piece = await attempt.read()
        came = self._gateway.clock()
        self._upstream_ms += (came - waiting) * 1000
        if not piece:
            return None
        if self._entry is not None:
            self._entry.piece(piece)
        return self._capture.feed(piece, (came - self._started) * 1000)

    # -- after it -------------------------------------------------------------------------------------------------

    async def _give_up(self, failure: UpstreamError) -> None:
        """Answers with the last failure: the upstream's own status and body where there are any."""
        self._capture.fail(failure)
        kept = await self._record("failed")
        if failure.status is not None and failure.body:
            status, body = failure.status, failure.body
        else:
            status = failure.status or (504 if isinstance(failure, UpstreamTimeoutError) else 502)
            body = refusal_body(self._request.path, str(failure), "api_error", failure.kind)
        extra = self._own_headers(kept)
        extra["content-type"] = (failure.content_type if failure.body else None) or "application/json"
        if failure.retry_after is not None:
            extra["retry-after"] = f"{failure.retry_after:g}"
        await self._client.begin(status, header_rules.to_client([], length=len(body), extra=extra))
        await self._client.pass_on(body, last=True)

    async def _record(self, status: Status) -> Kept | None:
        """Keeps the record and settles what was reserved; ``None``: there is no record of this call.

        It fails open: whatever goes wrong here, the client gets its answer.
        """
        self._over = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)  # the answer is there: no time limit may end what is left to do
        self._settle_pace()
        if not self._recorded:
            return None
        if self._left_early:
            status = "client_disconnected"
        self._gateway.count(status)
        self._ended = status
        try:
            return await self._keep(status)
        except Exception:  # noqa: BLE001 - a fault of recording must not become one of the agent
            _log.exception("A call was not recorded")
            self._gateway.count("unrecorded")
            return None

    async def _keep(self, status: Status) -> Kept:
        gateway, capture = self._gateway, self._capture
        transition = capture.transition(status, latency_ms=self._elapsed_ms(), prices=gateway.prices)
        self._cost = transition.cost
        gateway.remember(None if capture.repeats else capture.reader.id, self._uid)
        if status == "complete":
            gateway.conversations.ended(
                self._whose, self._step, self._uid, self._said, transition.action, capture.reader.id
            )
        if self._step.previous is not None and self._step.new_messages:
            news = msgspec.Raw(self._asked.last_messages(self._step.new_messages))
            gateway.beside(gateway.recorder.next_state(self._step.previous, news))
        recording = gateway.recorder.record(transition, self._uid, _marks_done(self._entry))
        self._reserving.settle(0 if transition.usage is None and capture.free else transition.cost)
        return await recording

    def _head(self, attempt: Attempt, length: int | None, kept: Kept | None = None) -> header_rules.Headers:
        """The headers of an answer; a stream goes out before it is recorded, so it says whether that will be late."""
        if kept is None and self._recorded and self._gateway.recorder.stuck:
            kept = "pending"
        return header_rules.to_client(attempt.headers, length=length, extra=self._own_headers(kept))

    def _own_headers(self, kept: Kept | None) -> dict[str, str]:
        headers = {"x-relive-overhead-ms": f"{max(0.0, self._elapsed_ms() - self._upstream_ms):.2f}"}
        if self._recorded:
            headers["x-relive-experience-id"] = self._uid.hex()
            headers["x-relive-cost"] = header_rules.dollars(self._cost) if self._over else "pending"
            if kept == "pending":
                headers["x-relive-recorded"] = "pending"
        return headers

    def _elapsed_ms(self) -> float:
        return (self._gateway.clock() - self._started) * 1000


def _marks_done(entry: Entry | None) -> Callable[[int | None], None]:
    """What is called once the record is safe; it holds on to nothing else of the call, which may have to wait long."""

    def safe(_: int | None) -> None:
        if entry is not None:
            entry.done()

    return safe
