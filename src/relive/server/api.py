"""The admin API: what workers and trainers anywhere use instead of the store's file.

Bodies are msgpack or JSON, as ``content-type`` and ``accept`` say. Every route asks for a scope. Errors are
``{"error": {"message", "code"}}`` with one sentence in the message. All of it is described at ``/api/openapi.json``.
"""

# ruff: noqa: ARG002  (every route is called with its request and its body, whether or not it looks at both)

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast, get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relive.buffer.errors import BufferSettingError, InvalidPriorityError, NotEnoughExperiencesError
from relive.errors import InvalidExperienceError, ReliveError
from relive.experience import Outcome
from relive.gateway.headers import read_headers
from relive.gateway.keys import Scope
from relive.gateway.refusals import RefusalError
from relive.server.build import Parts
from relive.server.feedback import FeedbackDesk, UnknownExperienceError
from relive.server.metrics import exposition
from relive.server.openapi import openapi
from relive.server.workers import MOST_LISTED, Workers
from relive.storage.errors import NotOwnerError, StorageBusyError, StorageFullError
from relive.storage.forget import NothingToForgetError
from relive.storage.stored import Stored
from relive.storage.wire import JSON, Form, form_of, pack, transition_fields, unpack

LARGEST_BODY = 64 << 20
LONG = 64 << 10
"""Bytes of a body that are read in a thread, so that no call through the gateway waits for it."""

FEW = 16
"""Experiences of an answer that is made without one."""

_CONDITIONS = ("agent", "episode_id", "group_id", "policy", "tag", "text")

Handler = Callable[[Request, Any], Awaitable[Any]]

_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownExperienceError, 404, "not_found"),
    (NotOwnerError, 409, "not_owner"),
    (NotEnoughExperiencesError, 409, "not_enough"),
    (StorageBusyError, 503, "store_busy"),
    (StorageFullError, 507, "store_full"),
    (InvalidExperienceError, 400, "invalid"),
    (InvalidPriorityError, 400, "invalid_priority"),
    (BufferSettingError, 400, "invalid_setting"),
    (NothingToForgetError, 400, "nothing_to_forget"),
    (ReliveError, 400, "refused"),
)


class AdminAPI:
    """The routes over one server's parts.

    Args:
        parts: The server's parts.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._memory = parts.memory
        self._desk = FeedbackDesk(parts.gateway, parts.memory.storage, parts.settings.metrics)
        self._workers = Workers(parts.memory)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = (
            ("/v1/feedback", "POST", "feedback", self.feedback),
            ("/api/experiences", "POST", "write", self.add),
            ("/api/experiences", "GET", "read", self.list_experiences),
            ("/api/experiences/{id}", "GET", "read", self.show),
            ("/api/search", "GET", "read", self.search),
            ("/api/get", "POST", "read", self.get),
            ("/api/query", "POST", "read", self.query),
            ("/api/sample", "POST", "write", self.sample),
            ("/api/priorities", "POST", "write", self.update_priorities),
            ("/api/remove", "POST", "admin", self.remove),
            ("/api/forget", "POST", "admin", self.forget),
            ("/api/stats", "GET", "read", self.stats),
            ("/api/usage", "GET", "read", self.usage),
        )
        served = [
            Route(path, self._served(handler, scope), methods=[method])  # type: ignore[arg-type]
            for path, method, scope, handler in routes
        ]
        served += [
            Route("/healthz", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/api/openapi.json", self.describe, methods=["GET"]),
        ]
        return Starlette(routes=served)

    # -- open to all ----------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether calls are recorded: 200, or 503 with the reason; calls themselves flow on in either case."""
        recorder = self._parts.gateway.recorder
        problems = ["the store does not take writes"] if recorder.stuck else []
        if recorder.stats.lost:
            problems.append(f"{recorder.stats.lost} records are lost")
        late = recorder.stuck or recorder.waiting > 0
        body = {"status": "recording late" if late else "ok", "problems": problems, "waiting": recorder.waiting}
        return Response(pack(body, JSON), 503 if late else 200, media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """Counts for Prometheus."""
        refused = self._refused(request, "read")
        if refused is not None:
            return refused
        return Response(exposition(self._parts), media_type="text/plain; version=0.0.4")

    async def describe(self, request: Request) -> Response:
        """The description of this API."""
        return Response(pack(openapi(), JSON), media_type=JSON)

    # -- routes ---------------------------------------------------------------------------------------------------

    async def feedback(self, request: Request, body: Any) -> Any:
        """Keeps feedback."""
        return await self._desk.take(body)

    async def add(self, request: Request, body: Any) -> Any:
        """Adds experiences, all or none."""
        return await self._workers.add(body)

    async def get(self, request: Request, body: Any) -> Any:
        """Experiences by id."""
        return await self._workers.get(body)

    async def query(self, request: Request, body: Any) -> Any:
        """One page of experiences, by any condition."""
        return await self._workers.query(body)

    async def list_experiences(self, request: Request, body: Any) -> Any:
        """One page of experiences."""
        query = request.query_params
        limit = min(_number(query.get("limit"), "limit", 20), MOST_LISTED)
        after = query.get("after")
        conditions = {name: query[name] for name in _CONDITIONS if name in query}
        outcome = _outcome(query.get("outcome"))
        found = await asyncio.to_thread(
            lambda: self._memory.query(
                **conditions,
                outcome=outcome,
                after=None if after is None else _number(after, "after", 0),
                limit=limit,
                newest_first=query.get("newest_first") in ("1", "true"),
            )
        )
        return {"experiences": [_shown(stored) for stored in found]}

    async def show(self, request: Request, body: Any) -> Any:
        """One experience, by its id or by the id that an answer's header gave."""
        named = request.path_params["id"]
        storage = self._memory.storage
        number: int | None = None
        if named.isascii() and named.isdecimal() and len(named) < 19:
            number = int(named)
        elif len(named) == 32:
            try:
                number = (await asyncio.to_thread(storage.ids_of, [bytes.fromhex(named)]))[0]
            except ValueError:
                number = None
        stored = None if number is None else (await asyncio.to_thread(storage.read, [number]))[0]
        if stored is None or number is None:
            raise UnknownExperienceError(f"There is no experience {named!r}.")
        feedback = await asyncio.to_thread(storage.feedback_of, number)
        return {**_shown(stored), "feedback": [item.to_dict() for item in feedback]}

    async def search(self, request: Request, body: Any) -> Any:
        """The experiences whose states are most like a text."""
        query = request.query_params
        limit = min(_number(query.get("limit"), "limit", 10), MOST_LISTED)
        outcome = _outcome(query.get("outcome"))
        found = await asyncio.to_thread(
            lambda: self._memory.search(query.get("text", ""), outcome=outcome, agent=query.get("agent"), limit=limit)
        )
        return {"found": [{"id": number, "score": score} for number, score in found]}

    async def sample(self, request: Request, body: Any) -> Any:
        """Draws experiences."""
        return await self._workers.sample(body)

    async def update_priorities(self, request: Request, body: Any) -> Any:
        """Sets priorities."""
        return await self._workers.update_priorities(body)

    async def remove(self, request: Request, body: Any) -> Any:
        """Takes experiences out."""
        return await self._workers.remove(body)

    async def forget(self, request: Request, body: Any) -> Any:
        """Takes experiences out so that no byte of them is left."""
        return await self._workers.forget(body)

    async def stats(self, request: Request, body: Any) -> Any:
        """Figures of the memory."""
        return await self._workers.stats()

    async def usage(self, request: Request, body: Any) -> Any:
        """What calls used and cost."""
        by = [name for name in request.query_params.get("by", "").split(",") if name]
        if not set(by) <= {"day", "model", "agent", "outcome"} or len(set(by)) != len(by):
            raise InvalidExperienceError("by holds some of day, model, agent and outcome, each once.")
        rows = await asyncio.to_thread(lambda: self._memory.storage.usage(by=by))  # type: ignore[arg-type]
        return {"rows": [{name: getattr(row, name) for name in row.__struct_fields__} for row in rows]}

    # -- around them ----------------------------------------------------------------------------------------------

    def _served(self, handler: Handler, scope: Scope) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            refused = self._refused(request, scope)
            if refused is not None:
                return refused
            wanted = form_of(request.headers.get("accept"))
            try:
                sent, form = await _read(request), form_of(request.headers.get("content-type"))
                body = unpack(sent, form) if len(sent) < LONG else await asyncio.to_thread(unpack, sent, form)
                result = await handler(request, body)
                data = await asyncio.to_thread(pack, result, wanted) if _is_long(result) else pack(result, wanted)
                return Response(data, media_type=wanted)
            except (ReliveError, OverflowError) as error:
                status, code = next(((s, c) for kind, s, c in _STATUSES if isinstance(error, kind)), (400, "invalid"))
                return _error(str(error), code, status, wanted)

        return serve

    def _refused(self, request: Request, scope: Scope) -> Response | None:
        try:
            self._parts.gateway.access.admit(read_headers(request.scope["headers"]), scope)
        except RefusalError as refusal:
            return _error(str(refusal), refusal.code, refusal.status, form_of(request.headers.get("accept")))
        return None


async def _read(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise InvalidExperienceError(f"The body is larger than {LARGEST_BODY >> 20} MiB; send it in parts.")
    return body


def _is_long(result: Any) -> bool:
    """Whether an answer takes long to be made."""
    listed = result.get("experiences") if isinstance(result, dict) else None
    return isinstance(listed, list) and len(listed) > FEW


def _error(message: str, code: str, status: int, form: Form) -> Response:
    return Response(pack({"error": {"message": message, "code": code}}, form), status, media_type=form)


def _shown(stored: Stored) -> dict[str, Any]:
    uid = None if stored.uid is None else stored.uid.hex()
    return {"id": stored.id, "uid": uid, "priority": stored.priority, **transition_fields(stored.transition)}


def _outcome(text: str | None) -> Outcome | None:
    if text is None or text in get_args(Outcome):
        return cast("Outcome | None", text)
    raise InvalidExperienceError(f"outcome is one of {', '.join(get_args(Outcome))}.")


def _number(text: str | None, name: str, otherwise: int) -> int:
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidExperienceError(f"{name} is a whole number from 0.")
    return int(text)
