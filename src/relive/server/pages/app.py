"""The pages as an ASGI application. Looking changes nothing: what changes a lesson is a POST from the page itself."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, get_args
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from relive.errors import ReliveError
from relive.experience import Outcome
from relive.gateway.access import Access, Caller
from relive.gateway.headers import read_headers
from relive.gateway.refusals import RefusalError
from relive.playbook import shelf
from relive.playbook.book import Playbook
from relive.playbook.exposures import injected_of, recalled_in
from relive.playbook.lesson import DEFAULT_TENANT, STATUSES, InvalidLessonError, Lesson
from relive.server.origin import from_own_page
from relive.server.pages.conversation import conversation
from relive.server.pages.entrance import Entrance
from relive.server.pages.figures import chart, help_of
from relive.server.pages.looks import ASSETS, render
from relive.server.spending import spending
from relive.storage import SqliteStorage, Stored
from relive.storage.errors import StorageBusyError
from relive.storage.wire import JSON, pack, transition_fields

PATHS = frozenset({"", "experiences", "lessons", "costs", "login", "logout", "assets"})
"""The first parts of the paths that are served here."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

ROWS = 50
"""Rows of a page; the next begins after the last one's id."""

_MOST_OF_A_LESSON = 200
_MOST_IN_A_PROMPT = 50
_MOST_BY = 100
_PERIODS = {"7": 7, "30": 30, "90": 90, "all": None}
_LARGEST_FORM = 64 << 10

Look = Callable[[Request], Any]


class NoSuchPageError(ReliveError):
    """There is nothing at this address."""


class Pages:
    """The pages over one store.

    Args:
        storage: The store.
        access: The gateway's, which lets people in; ``None``: there is none, and whoever asks may look.
        can_change: Whether lessons can be approved and retired here.
        tenant: Whose lessons.
        zone: Where days begin and end.
    """

    def __init__(
        self,
        storage: SqliteStorage,
        *,
        access: Access | None = None,
        can_change: bool = False,
        tenant: str = DEFAULT_TENANT,
        zone: tzinfo = UTC,
    ) -> None:
        self._storage = storage
        self._entrance = Entrance(access)
        self._keys = access is not None and access.required
        self._can_change = can_change
        self._tenant = tenant
        self._zone = zone

    def app(self) -> Starlette:
        """The ASGI application."""
        looks: tuple[tuple[str, Look], ...] = (
            ("/", self.home),
            ("/experiences", self.experiences),
            ("/experiences/{id}", self.experience),
            ("/experiences/{id}/record.json", self.record),
            ("/lessons", self.lessons),
            ("/lessons/{id}", self.lesson),
            ("/costs", self.costs),
        )
        routes = [Route(path, self._looked(look), methods=["GET"]) for path, look in looks]
        routes += [
            Route("/lessons/{id}/{change:str}", self._done(self.change), methods=["POST"]),
            Route("/login", self._done(self.log_in, open_to_all=True), methods=["POST"]),
            Route("/logout", self._done(self.log_out, open_to_all=True), methods=["POST"]),
            Route("/assets/{name}", self.asset, methods=["GET"]),
            Route("/{rest:path}", self._looked(_nothing_here), methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refused, Exception: self._broken})

    # -- looking --------------------------------------------------------------------------------------------------

    def home(self, request: Request) -> Response:
        """Whether it helps, what it costs, what helped most."""
        book, days = self._book(), _PERIODS["30"]
        spent = spending(self._storage, ["day"], days=days, zone=self._zone)
        return self._page(
            request,
            "home",
            stats=self._storage.stats(),
            helps=help_of(book),
            best=book.most_useful(),
            lessons=book.counts(),
            spent=spent,
            chart=chart(spent.rows, self._today()),
        )

    def experiences(self, request: Request) -> Response:
        """The experiences, the newest first."""
        query = request.query_params
        given = {name: query[name] for name in ("text", "agent", "tag", "episode") if query.get(name)}
        outcome = query.get("outcome") or None
        if outcome is not None and outcome not in get_args(Outcome):
            raise ReliveError(f"outcome is one of {', '.join(get_args(Outcome))}.")
        found = self._storage.query(
            text=given.get("text"),
            agent=given.get("agent"),
            tag=given.get("tag"),
            episode_id=given.get("episode"),
            outcome=outcome,  # type: ignore[arg-type]
            since=self._midnight(query.get("since"), "since"),
            until=self._midnight(query.get("until"), "until", after=1),
            after=_number(query.get("before")),
            limit=ROWS + 1,
            newest_first=True,
        )
        return self._page(
            request,
            "experiences",
            rows=[_outline(stored) for stored in found[:ROWS]],
            outcomes=get_args(Outcome),
            **_asked(request, found),
        )

    def experience(self, request: Request) -> Response:
        """One experience."""
        stored = self._stored(request)
        try:
            shown, transition, damage = conversation(stored), stored.transition, None
        except ReliveError as error:
            shown, transition, damage = None, stored.outline(), str(error)
        return self._page(
            request,
            "experience",
            stored=stored,
            one=transition,
            damage=damage,
            conversation=shown,
            feedback=self._storage.feedback_of(stored.id)[:_MOST_OF_A_LESSON],
            tries=self._storage.query(parent=stored.id, limit=_MOST_IN_A_PROMPT),
            **self._given(transition.info),
        )

    def record(self, request: Request) -> Response:
        """One experience as JSON, to keep."""
        stored = self._stored(request)
        feedback = [one.to_dict() for one in self._storage.feedback_of(stored.id)]
        body = pack({"id": stored.id, **transition_fields(stored.transition), "feedback": feedback}, JSON)
        name = f'attachment; filename="experience-{stored.id}.json"'
        return Response(body, media_type=JSON, headers={**HEADERS, "content-disposition": name})

    def lessons(self, request: Request) -> Response:
        """The lessons, the newest first."""
        book, query = self._book(), request.query_params
        status = query.get("status") or None
        if status is not None and status not in STATUSES:
            raise ReliveError(f"status is one of {', '.join(STATUSES)}.")
        found = book.lessons(
            status=status,
            agent=query.get("agent") or None,
            after=_number(query.get("before")),
            limit=ROWS + 1,
            newest_first=True,
        )
        return self._page(
            request,
            "lessons",
            rows=found[:ROWS],
            counts=book.counts(),
            helps=help_of(book),
            **_asked(request, found),
        )

    def lesson(self, request: Request) -> Response:
        """One lesson."""
        book, number = self._book(), _id(request)
        return self._page(
            request,
            "lesson",
            lesson=book.get(number),
            sources=book.sources(number, limit=_MOST_OF_A_LESSON),
            history=book.history(number, limit=_MOST_OF_A_LESSON),
            command=f"{number} {shlex.quote(str(self._storage.path))}",
        )

    def costs(self, request: Request) -> Response:
        """What calls cost."""
        period = request.query_params.get("days", "30")
        if period not in _PERIODS:
            raise ReliveError(f"days is one of {', '.join(_PERIODS)}.")
        days = _PERIODS[period]
        by_day = spending(self._storage, ["day"], days=days, zone=self._zone)
        now = datetime.now(UTC)
        since = None if days is None else now - timedelta(days=days)
        groups = {
            name: sorted(
                self._storage.usage(by=[name], since=since, until=now),
                key=lambda row: (-(row.cost or 0), -row.calls, row.group),
            )
            for name in ("model", "agent")
        }
        return self._page(
            request,
            "costs",
            spent=by_day,
            groups={**groups, "day": by_day.rows[::-1]},
            most=_MOST_BY,
            chart=chart(by_day.rows, self._today()),
            period=period,
            periods=tuple(_PERIODS),
        )

    async def asset(self, request: Request) -> Response:
        """A style, a script, an icon."""
        found = ASSETS.get(request.path_params["name"])
        if found is None:
            return Response("There is no such file.", 404, headers=HEADERS)
        kept = {**HEADERS, "cache-control": "max-age=31536000, immutable"}  # its address changes with its content
        return Response(found.content, media_type=found.media_type, headers=kept)

    # -- changing -------------------------------------------------------------------------------------------------

    def change(self, request: Request, form: dict[str, str]) -> Response:
        """Approves or retires a lesson."""
        change, number = request.path_params["change"], _id(request)
        caller = self._entrance.admit(request, "admin")
        if change not in ("approve", "retire"):
            raise NoSuchPageError("There is no such page.")
        if not self._can_change:
            raise ReliveError("The store is open for looking only; use `relive lessons approve` or `retire`.")
        book = self._book(caller)
        if change == "approve":
            book.approve(number)
        else:
            book.retire(number, form.get("reason", "").strip())
        return RedirectResponse(f"/lessons/{number}", 303, headers=HEADERS)

    def log_in(self, request: Request, form: dict[str, str]) -> Response:
        """Takes a key, and goes on to where one wanted to go."""
        going = form.get("next", "/")
        inside = going.startswith("/") and not going.startswith(("//", "/\\"))
        response = RedirectResponse(going if inside else "/", 303, headers=HEADERS)
        self._entrance.log_in(request, response, form.get("key", "").strip())
        return response

    def log_out(self, request: Request, form: dict[str, str]) -> Response:  # noqa: ARG002 - as all that is done
        """Ends the session."""
        response = RedirectResponse("/", 303, headers=HEADERS)
        self._entrance.log_out(request, response)
        return response

    # -- around them ----------------------------------------------------------------------------------------------

    def _looked(self, look: Look) -> Callable[[Request], Awaitable[Response]]:
        def answer(request: Request) -> Response:
            self._entrance.admit(request, "read")
            return look(request)  # type: ignore[no-any-return]

        async def serve(request: Request) -> Response:
            return await run_in_threadpool(self._answered, request, answer, request)

        return serve

    def _done(
        self, act: Callable[[Request, dict[str, str]], Response], *, open_to_all: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        def answer(request: Request, body: bytes) -> Response:
            if not from_own_page(read_headers(request.scope["headers"])):
                raise RefusalError(
                    "This can be done from Relive's own pages only; the request came from elsewhere.",
                    status=403,
                    kind="permission_error",
                    code="foreign_page",
                )
            if not open_to_all:
                self._entrance.admit(request, "read")
            fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=20)
            return act(request, {name: values[0] for name, values in fields.items()})

        async def serve(request: Request) -> Response:
            body = b""
            async for piece in request.stream():
                body += piece
                if len(body) > _LARGEST_FORM:
                    return Response("The form is too large.", 413, headers=HEADERS)
            return await run_in_threadpool(self._answered, request, answer, request, body)

        return serve

    def _answered(self, request: Request, answer: Callable[..., Response], *arguments: Any) -> Response:
        """The answer, or the page that says in a sentence why there is none."""
        try:
            return answer(*arguments)
        except RefusalError as refusal:
            if refusal.status == 401:
                wrong = request.method == "POST"
                going = "/" if wrong else str(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
                return self._page(request, "login", 401, next=going, message=str(refusal) if wrong else None)
            status, sentence = refusal.status, str(refusal)
        except (NoSuchPageError, InvalidLessonError) as error:
            status, sentence = 404, str(error)
        except StorageBusyError as error:
            status, sentence = 503, str(error)
        except (ReliveError, ValueError, OverflowError) as error:
            status, sentence = 400, str(error)
        return self._page(request, "message", status, message=sentence)

    def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        return self._page(request, "message", status, message="That cannot be done at this address.")

    def _broken(self, request: Request, error: Exception) -> Response:  # noqa: ARG002 - the server logs it
        return self._page(request, "message", 500, message="Something broke here; the server's log says what.")

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        text = render(
            template,
            path=request.url.path,
            store=self._storage.path.name,
            keys=self._keys,
            can_change=self._can_change,
            zone=self._zone,
            **values,
        )
        return HTMLResponse(text.encode(errors="replace"), status, headers=HEADERS)

    def _book(self, caller: Caller | None = None) -> Playbook:
        author = None if caller is None or not caller.name else f"{caller.agent} (key {caller.name})"
        return Playbook(self._storage, tenant=self._tenant, author=author)

    def _stored(self, request: Request) -> Stored:
        number = _id(request)
        (found,) = self._storage.read([number])
        if found is None:
            raise NoSuchPageError(f"There is no experience {number}; it may have been evicted or forgotten.")
        return found

    def _given(self, info: Any) -> dict[str, Any]:
        """What an experience's prompt was given: lessons, shown or held out, and past successes."""
        injected = injected_of(info)
        lessons = () if injected is None else injected.lessons[:_MOST_IN_A_PROMPT]
        found = self._storage.view(lambda c: shelf.read(c, [one.lesson for one in lessons]))
        past = [] if injected is None else [number for number, _ in injected.experiences]
        known = [one if one is not None and one.tenant == self._tenant else None for one in found]
        return {
            "injected": injected,
            "lessons": list(zip(lessons, known, strict=True)),
            "past": [*past, *recalled_in(info)][:_MOST_IN_A_PROMPT],
        }

    def _today(self) -> date:
        return datetime.now(self._zone).date()

    def _midnight(self, text: str | None, name: str, after: int = 0) -> datetime | None:
        """The beginning of a day, or of one so many days later; ``None``: none is given."""
        if not text:
            return None
        try:
            day = date.fromisoformat(text) + timedelta(days=after)
            return datetime.combine(day, time(), self._zone).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ReliveError(f"{name} is no date; write one such as 2026-11-30.") from None


def _nothing_here(request: Request) -> Response:  # noqa: ARG001 - as all pages
    raise NoSuchPageError("There is no such page.")


def _outline(stored: Stored) -> dict[str, Any]:
    """What a list shows of an experience; of one that is damaged, what can be read."""
    try:
        return {"id": stored.id, "one": stored.transition, "damaged": False}
    except ReliveError:
        return {"id": stored.id, "one": stored.outline(), "damaged": True}


def _asked(request: Request, found: Sequence[Stored | Lesson]) -> dict[str, Any]:
    """The conditions of a list, and the query of its next page if more was found than one page holds."""
    given = {name: value for name, value in request.query_params.items() if name != "before" and value}
    older = urlencode({**given, "before": found[ROWS - 1].id}) if len(found) > ROWS else None
    return {"given": given, "older": older}


def _id(request: Request) -> int:
    number = _number(request.path_params["id"])
    if number is None:
        raise NoSuchPageError("There is no such page.")
    return number


def _number(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise NoSuchPageError("There is no such page: its address holds a number that is none.")
    return int(text)
