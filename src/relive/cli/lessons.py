"""The playbook from the command line: `relive lessons …` and `relive inject`."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, short, table
from relive.errors import ReliveError
from relive.experience import new_episode_id
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection, lesson_line
from relive.playbook.lesson import DEFAULT_TENANT, STATUSES, Lesson, Status
from relive.playbook.recall import estimate_tokens
from relive.server.words import UNKNOWN, number, points
from relive.storage import SqliteStorage
from relive.storage.connection import check_path

lessons = typer.Typer(help="Look at lessons, decide on them, and take them back.", no_args_is_help=True)

LessonId = Annotated[int, typer.Argument(metavar="ID", help="The lesson's id.")]
Tenant = Annotated[str, typer.Option(help="Whose lessons, where one store holds those of several.")]
_MOST = 1_000_000
_DAY, _MINUTE = "%Y-%m-%d", "%Y-%m-%d %H:%M"


@lessons.command("list")
def list_lessons(
    file: StoreFile = DEFAULT_FILE,
    status: Annotated[str | None, typer.Option(help=f"Only with this status: {', '.join(STATUSES)}.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only what this agent may be shown.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    json: Json = False,
) -> None:
    """List lessons: when, do, support, uplift with its interval, tokens a use."""
    with SqliteStorage(file, readonly=True) as store:
        book = Playbook(store, tenant=tenant)
        found = book.lessons(status=_status(status), agent=agent, limit=limit)
        worth = book.worth(agent)
    if json:
        for lesson in found:
            print_json({**lesson.to_dict(), "tokens": estimate_tokens(lesson_line(lesson))})
        return
    rows = table(
        "id", "status", "when", "do", "support", "uplift", "interval", "calls", "uses", "tokens",
        right=("id", "support", "uplift", "calls", "uses", "tokens"),
    )  # fmt: skip
    for lesson in found:
        rows.add_row(
            str(lesson.id),
            lesson.status + (", proved" if lesson.proved else ""),
            short(lesson.text.when or "always", 40),
            short(lesson.text.do, 60),
            f"{lesson.support}" + (f" - {lesson.opposed}" if lesson.opposed else ""),
            points(lesson.uplift.estimate if lesson.calls else None),
            _span(lesson),
            f"{lesson.calls:,}",
            f"{lesson.uses:,}",
            str(estimate_tokens(lesson_line(lesson))),
        )
    console().print(rows)
    if float(worth.error) < 1:
        console().print(
            f"The whole book: {points(float(worth.estimate))} points of success "
            f"({points(float(worth.low))} to {points(float(worth.high))}), by episodes held out from all of it."
        )


@lessons.command("show")
def show_lesson(
    lesson_id: LessonId, file: StoreFile = DEFAULT_FILE, tenant: Tenant = DEFAULT_TENANT, json: Json = False
) -> None:
    """Show a lesson whole: its text, sources and history."""
    with SqliteStorage(file, readonly=True) as store:
        book = Playbook(store, tenant=tenant)
        lesson, sources, history = book.get(lesson_id), book.sources(lesson_id), book.history(lesson_id)
    record: dict[str, Any] = {
        **lesson.to_dict(),
        "sources": [{"ref": one.ref, "by": one.by, "for": up} for one, up in sources],
        "history": [
            {
                "at": f"{one.at:{_MINUTE}}",
                "who": one.who,
                "change": one.change,
                "status": one.status,
                "reason": one.reason,
            }
            for one in history
        ],
    }
    if json:
        print_json(record)
    else:
        console().print_json(data=record, default=str)


@lessons.command("add")
def add_lesson(
    do: Annotated[str, typer.Argument(help="What to do.")],
    file: StoreFile = DEFAULT_FILE,
    when: Annotated[str, typer.Option(help="In which situations; without: always.")] = "",
    when_not: Annotated[str, typer.Option(help="Where not.")] = "",
    why: Annotated[str, typer.Option(help="What it rests on.")] = "",
    agent: Annotated[str | None, typer.Option(help="Whose; without: shared by all.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Write a lesson by hand, as a candidate; `approve` puts it into use."""
    with open_book(file, tenant) as book:
        applied = book.add(do, when=when, when_not=when_not, why=why, agent=agent)
    say(f"Lesson {applied.lesson}: {applied.what}." + (f" In quarantine: {applied.reason}" if applied.reason else ""))


@lessons.command("approve")
def approve_lesson(lesson_id: LessonId, file: StoreFile = DEFAULT_FILE, tenant: Tenant = DEFAULT_TENANT) -> None:
    """Put a lesson into use, whatever its status."""
    with open_book(file, tenant) as book:
        book.approve(lesson_id)
    say(f"Lesson {lesson_id} is in use.")


@lessons.command("retire")
def retire_lesson(
    lesson_id: LessonId,
    file: StoreFile = DEFAULT_FILE,
    reason: Annotated[str, typer.Option(help="Why, in one sentence.")] = "",
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Take a lesson out of use; it stays in the book, so that it is not learnt again."""
    with open_book(file, tenant) as book:
        book.retire(lesson_id, reason)
    say(f"Lesson {lesson_id} is retired.")


@lessons.command("rollback")
def roll_back(
    file: StoreFile = DEFAULT_FILE,
    experience: Annotated[int | None, typer.Option(help="All that came from this experience.")] = None,
    agent: Annotated[str | None, typer.Option(help="All that came from this agent's experiences.")] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=[_DAY, _MINUTE], help="From this time on, UTC: 2026-11-30 or '… 14:05'.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(formats=[_DAY, _MINUTE], help="Before this time, UTC.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
    json: Json = False,
) -> None:
    """Take back all that was learnt from an experience, an agent or a time span, through prompts already given."""
    if experience is None and agent is None and since is None and until is None:
        raise typer.BadParameter("Say what to roll back.", param_hint="--experience, --agent, --since or --until")
    with open_book(file, tenant) as book:
        done = book.rollback(
            experience=experience,
            agent=agent,
            since=None if since is None else since.replace(tzinfo=UTC),
            until=None if until is None else until.replace(tzinfo=UTC),
        )
    if json:
        print_json(done)
        return
    say(
        f"Nothing is learnt any more from {len(done.experiences):,} experiences; {len(done.retired):,} lessons are "
        f"retired, {len(done.candidates):,} are candidates again, {len(done.weakened):,} others lost support."
    )


@lessons.command("follow")
def follow(file: StoreFile = DEFAULT_FILE, tenant: Tenant = DEFAULT_TENANT, json: Json = False) -> None:
    """Take in what calls came to, and settle or retire lessons by what they are worth."""
    with open_book(file, tenant) as book:
        done = book.follow()
    if json:
        print_json(done)
        return
    say(
        f"Looked at {done.experiences:,} experiences: {done.exposures:,} new eligible episodes, {done.settled:,} "
        f"outcomes. Proved: {_ids(done.proved)}. Retired: {_ids(done.retired)}."
    )


@lessons.command("export")
def export_lessons(
    file: StoreFile = DEFAULT_FILE,
    to: Annotated[Path | None, typer.Option(help="The file to write; without: standard output.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Write lessons as JSON, one a line."""
    with SqliteStorage(file, readonly=True) as store:
        records = list(Playbook(store, tenant=tenant).export(status=_status(status)))
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if to is None:
        sys.stdout.write(text)
        return
    to.write_text(text, encoding="utf-8")
    say(f"Wrote {len(records):,} lessons to {to}.")


@lessons.command("import")
def import_lessons(
    source: Annotated[Path, typer.Argument(help="A file that `relive lessons export` wrote.")],
    file: StoreFile = DEFAULT_FILE,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Add lessons from a file, as candidates; doing so twice adds nothing."""
    records = []
    for at, line in enumerate(source.read_bytes().split(b"\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError:  # or no UTF-8
                raise ReliveError(f"Line {at} of {source} is no JSON; nothing was imported.") from None
    with open_book(file, tenant) as book:
        applied = book.take_in(records, source=source.name)
    count = {what: sum(one.what == what for one in applied) for what in ("added", "merged", "known")}
    say(f"Added {count['added']:,}, merged {count['merged']:,}, known already {count['known']:,}.")


def inject(
    text: Annotated[str, typer.Argument(help="What a user asks.")],
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str, typer.Option(help="Who is asked.")] = "default",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show it and send nothing, which is all that it does.")
    ] = True,
    token_budget: Annotated[int, typer.Option(min=0, help="Most tokens of the block.")] = 600,
    max_distance: Annotated[float, typer.Option(min=0, max=1, help="Nothing farther away than this.")] = 0.8,
    tenant: Tenant = DEFAULT_TENANT,
    json: Json = False,
) -> None:
    """Show what a prompt would be given, with nothing held out: lessons, past successes, distances, tokens."""
    with open_book(file, tenant) as book:
        injection = Injection(
            book,
            successes=4,
            token_budget=token_budget,
            max_distance=max_distance,
            held_out=0.0,
        )
        plan = injection.plan(
            [{"role": "user", "content": text}], agent=agent, episode=new_episode_id(), everything=True
        )
    if json:
        print_json({**plan.facts.get("injected", {}), "block": plan.block, "dry_run": dry_run})
        return
    say(plan.block or "Nothing: no lesson is in use that is near enough, and no success is alike enough.")
    for found in plan.shown:
        say(f"lesson {found.lesson.id}: distance {found.distance:.2f}, {found.lesson.calls:,} calls")
    for one, distance in plan.experiences:
        say(f"experience {one.id}: distance {distance:.2f}")
    say(f"{plan.tokens} of {token_budget} tokens, estimated.")


class open_book:  # noqa: N801 - reads as a function
    """The book of a store that is there, open for writing."""

    def __init__(self, file: Path, tenant: str) -> None:
        check_path(file, readonly=True)  # a store that is not there is not made
        self._store = SqliteStorage(file)
        self._tenant = tenant

    def __enter__(self) -> Playbook:
        return Playbook(self._store, tenant=self._tenant)

    def __exit__(self, *exception: object) -> None:
        self._store.close()


def _status(text: str | None) -> Status | None:
    known = {one: one for one in STATUSES}
    if text is not None and text not in known:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(known)}.", param_hint="--status")
    return None if text is None else known[text]


def _span(lesson: Lesson) -> str:
    if not lesson.calls:
        return UNKNOWN
    return f"{number(100 * lesson.uplift.low, 1)} to {number(100 * lesson.uplift.high, 1)}"


def _ids(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"
