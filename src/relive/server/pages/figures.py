"""The figures of the pages, each from the functions that the commands use too."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from relive.playbook import uplift
from relive.playbook.book import Playbook
from relive.playbook.injection import lesson_line
from relive.playbook.lesson import Lesson
from relive.playbook.recall import estimate_tokens
from relive.playbook.uplift import Interval
from relive.storage.usage_report import UsageRow

MOST_DAYS = 366
"""Days of a chart."""


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """Success with lessons and past successes in the prompt, and without.

    Attributes:
        given: Episodes that were given some, their outcome known.
        held_out: Episodes that chance left without.
        with_it: Share of success of the former; ``None``: there were none.
        without: Share of success of the latter.
        uplift: The difference that it makes, with its interval.
    """

    given: int
    held_out: int
    with_it: float | None
    without: float | None
    uplift: Interval


def help_of(book: Playbook) -> Help:
    """What the whole book is worth, from the episodes that were held out from all of it."""
    found = book.evidence()
    given, calls = int(found.shown), int(found.calls)
    held_out = calls - given
    return Help(
        given=given,
        held_out=held_out,
        with_it=float(found.shown_sum) / given if given else None,
        without=float(found.held_sum) / held_out if held_out else None,
        uplift=uplift.interval(found, alpha=book.rules.alpha),
    )


def tokens_a_use(lesson: Lesson) -> int:
    """Tokens that a lesson adds to a prompt, estimated."""
    return estimate_tokens(lesson_line(lesson))


def chart(rows: list[UsageRow], today: date) -> str:
    """Calls and spend by day as strict JSON for ``pages.js``; days without calls are 0, unknown costs are null.

    Args:
        rows: By day.
        today: The last day of the chart.
    """
    known: Mapping[str, UsageRow] = {row.group[0]: row for row in rows}
    first = min((date.fromisoformat(day) for day in known), default=today)
    first = max(first, today - timedelta(days=MOST_DAYS - 1))
    days = [first + timedelta(days=n) for n in range((today - first).days + 1)]
    found = [known.get(day.isoformat()) for day in days]
    spend = [0.0 if row is None else None if row.cost is None else row.cost / 1e9 for row in found]
    values: dict[str, Any] = {
        "days": [int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) for day in days],
        "calls": [0 if row is None else row.calls for row in found],
        "spend": spend,
    }
    return msgspec.json.encode(values).decode()
