"""Reflection by contrast: what successes have that failures have not. No model, no key, no randomness.

Each feature of the episodes (`features`) is tested by Fisher's exact test, and the p-values are corrected for many
tests by Benjamini and Hochberg's false-discovery rate, for each agent within each of four families: behaviour (tools,
order, course), phrases, words of the request, and choices at such words, so that a thousand phrases do not drown forty
tools. So the rate holds within each agent's families, not for all that is found together. What is found is a
*pattern*: support, lift, odds ratio with its exact interval.

A pattern is not a cause: an action may go with failure because it is needed where the task is hard. Two things stand
against that. Where episodes have tasks (``group_id``), part of the tasks is kept back, and a pattern becomes a lesson
only if it does not turn round there; trials of one task are alike, which makes p-values too small, and tasks never seen
are not impressed by that. And a lesson made of a pattern is a candidate like any other, whose uplift is measured before
anybody believes it.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from relive.playbook.book import Playbook
from relive.playbook.changes import Applied
from relive.playbook.lesson import Add, LessonText, Source
from relive.reflect.exact import Table, adjusted, odds_interval, p_value
from relive.reflect.features import Episode, Feature, episode_of
from relive.reflect.finished import finished_episodes
from relive.storage import SqliteStorage

ENOUGH = 10
"""Episodes with a known outcome below which nothing is looked for."""

_FAMILY = dict.fromkeys(("tool", "order", "course"), "behaviour")
_SOURCES = 50  # episodes that are named as a lesson's sources


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as a pattern.

    Attributes:
        false_discoveries: The false-discovery rate that is accepted among the patterns of one agent and family.
        support: Episodes that must have the feature, and that must not.
        tasks: Tasks that these must come from, where episodes have tasks.
        held_back: Share of the tasks that patterns are checked on.
        most: Patterns at most, the surest first.
    """

    false_discoveries: float = 0.1
    support: int = 5
    tasks: int = 3
    held_back: float = 0.3
    most: int = 50


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that goes with success, or with failure.

    Attributes:
        feature: The feature.
        agent: Whose episodes.
        good_with: Successes that have it.
        with_it: Episodes that have it.
        good: Successes.
        count: Episodes.
        lift: Success rate of those that have it over the success rate of all.
        p: Two-sided p-value of the exact test.
        q: The same corrected for all features of its family that were tested of this agent.
        odds: Exact 95 % interval of the odds ratio.
        held_out_lift: The lift on the tasks kept back; ``None``: none were kept back, or none of them has the feature.
        within_p: The p-value if only episodes of one and the same task are compared; ``None``: there are no tasks.
        sources: Ids of experiences that speak for it: successes with a good feature, failures with a bad one.
    """

    feature: Feature
    agent: str
    good_with: int
    with_it: int
    good: int
    count: int
    lift: float
    p: float
    q: float
    odds: tuple[float, float]
    held_out_lift: float | None = None
    within_p: float | None = None
    sources: tuple[int, ...] = ()

    @property
    def helps(self) -> bool:
        """Whether it goes with success."""
        return self.lift > 1

    @property
    def keeps_direction(self) -> bool | None:
        """Whether it points the same way on the tasks kept back; ``None``: not known."""
        return None if self.held_out_lift is None else (self.held_out_lift > 1) == self.helps


class Contrast(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        patterns: Patterns of all agents, the surest first.
        episodes: Episodes with a known outcome that were compared.
        successes: How many of them succeeded.
        tested: Features that were tested.
        reason: Why nothing was looked for; empty: it was.
    """

    patterns: tuple[Pattern, ...] = ()
    episodes: int = 0
    successes: int = 0
    tested: int = 0
    reason: str = ""


def contrast(episodes: Iterable[Episode], settings: Settings | None = None) -> Contrast:
    """Compares successes with failures, agent by agent; episodes whose outcome is unknown count as neither.

    Args:
        episodes: The episodes.
        settings: What counts as a pattern.
    """
    settings = settings or Settings()
    by_agent: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.outcome != "unknown":
            by_agent[episode.agent].append(episode)
    count = sum(map(len, by_agent.values()))
    good = sum(one.outcome == "success" for found in by_agent.values() for one in found)
    patterns: list[Pattern] = []
    tested = 0
    for agent, found in sorted(by_agent.items()):
        seen, kept_back = _split(found, settings.held_back)
        candidates = _worth_testing(seen, settings)
        tested += len(candidates)
        patterns += _patterns(agent, seen, kept_back, candidates, settings)
    patterns.sort(key=lambda one: (one.q, one.p, one.feature))
    reason = "" if tested else f"There are {count} episodes with a known outcome, {good} of them successes: too few."
    return Contrast(tuple(patterns[: settings.most]), count, good, tested, reason)


def lift(episodes: Sequence[Episode], feature: Feature) -> float | None:
    """Success rate of the episodes with a feature over that of all; ``None``: none has it, or none succeeded."""
    having = [one for one in episodes if feature in one.features]
    good = sum(one.outcome == "success" for one in episodes)
    if not having or not good:
        return None
    return (sum(one.outcome == "success" for one in having) / len(having)) / (good / len(episodes))


def episodes_of(
    store: SqliteStorage, *, agent: str | None = None, distrusted: frozenset[int] = frozenset()
) -> list[Episode]:
    """The features of a store's episodes; see `finished_episodes` for the arguments."""
    found = finished_episodes(store, agent=agent, distrusted=distrusted)
    return [episode_of([transition for _, transition in steps], steps[-1][0]) for steps in found]


def reflect(
    book: Playbook, *, agent: str | None = None, settings: Settings | None = None
) -> tuple[Contrast, list[Applied]]:
    """Compares a store's successes with its failures and adds what keeps its direction to the book, as candidates.

    Args:
        book: The book; its store holds the experiences.
        agent: Only this agent's.
        settings: What counts as a pattern.
    """
    found = contrast(episodes_of(book.storage, agent=agent, distrusted=book.all_distrusted()), settings)
    adds = [add for one in found.patterns if one.keeps_direction is not False if (add := lesson_of(one)) is not None]
    return found, book.apply(adds, who="reflection by contrast") if adds else []


def lesson_of(pattern: Pattern) -> Add | None:
    """The lesson that a pattern suggests; ``None``: nothing can be done about it (what was asked, how it went)."""
    advice = _advice(pattern.feature, pattern.helps)
    if advice is None:
        return None
    do, when = advice
    without = pattern.count - pattern.with_it
    why = (
        f"With it {pattern.good_with} of {pattern.with_it} episodes succeeded, without it "
        f"{pattern.good - pattern.good_with} of {without} (lift {pattern.lift:.2f}, corrected p {pattern.q:.2g}"
    )
    why += ")" if pattern.held_out_lift is None else f"; lift {pattern.held_out_lift:.2f} on tasks kept back)"
    sources = tuple(Source(ref=f"experience:{n}", experience_id=n) for n in pattern.sources[:_SOURCES])
    text = LessonText(do=do, when=when, why=why, title=do)
    return Add(text=text, agent=pattern.agent, sources=sources, origin="contrast")


def _advice(feature: Feature, helps: bool) -> tuple[str, str] | None:
    """What to do, and when, about a feature that goes with success, or else with failure."""
    if feature.kind == "choice":
        choice, _, word = feature.name.partition(" at ")
        if not word:
            return None
        return f"Choose {choice}" if helps else f"Do not choose {choice}", f'the request says "{word}"'
    forms = _FORMS.get(feature.kind, ())
    for pattern, good, bad in forms:
        if (match := pattern.fullmatch(feature.name)) is not None:
            return (good if helps else bad).format(*match.groups()), ""
    return None


_FORMS: dict[str, tuple[tuple[re.Pattern[str], str, str], ...]] = {
    kind: tuple((re.compile(pattern), good, bad) for pattern, good, bad in forms)
    for kind, forms in {
        "tool": (
            ("no tool", "Answer without tools where that is possible", "Use the tools rather than answer without"),
            ("(.+), 3 times or more", "Use {0} as often as it takes", "Look for another way than a third use of {0}"),
            ("(.+)", "Use {0} where it applies", "Look for another way before using {0}"),
        ),
        "order": (
            ("(.+), then (.+)", "After {0}, go on with {1}", "After {0}, do not go straight on with {1}"),
            ("(.+) twice in a row", "Use {0} again if its first result is not enough", "Do not use {0} twice in a row"),
            ("(.+) first", "Begin with {0}", "Do not begin with {0}"),
            ("(.+) last", "End with {0}", "Look once more before ending with {0}"),
        ),
        "phrase": (("(.+)", 'Say it with words such as "{0}"', 'Do not say "{0}" before all is looked at'),),
    }.items()
}


def _split(episodes: list[Episode], held_back: float) -> tuple[list[Episode], list[Episode]]:
    """The episodes to look at, those without a task among them, and those of the tasks kept back: always the same."""
    tasks = sorted({one.group for one in episodes if one.group is not None}, key=_shuffled)
    count = int(len(tasks) * held_back)
    if not count:
        return episodes, []
    kept = set(tasks[:count])
    return [one for one in episodes if one.group not in kept], [one for one in episodes if one.group in kept]


def _shuffled(task: str) -> bytes:
    return hashlib.blake2b(task.encode(), digest_size=8).digest()


def _worth_testing(episodes: list[Episode], settings: Settings) -> list[Feature]:
    good = sum(one.outcome == "success" for one in episodes)
    if len(episodes) < ENOUGH or not 0 < good < len(episodes):
        return []
    counts = Counter(feature for one in episodes for feature in one.features)
    tasks: dict[Feature, set[str]] = defaultdict(set)
    for one in episodes:
        for feature in one.features:
            tasks[feature].add(one.group or one.id)
    high = len(episodes) - settings.support
    return sorted(
        feature
        for feature, count in counts.items()
        if settings.support <= count <= high and len(tasks[feature]) >= settings.tasks
    )


def _patterns(
    agent: str, seen: list[Episode], kept_back: list[Episode], features: list[Feature], settings: Settings
) -> list[Pattern]:
    if not features:
        return []
    tables = [_table(seen, feature) for feature in features]
    p = np.array([p_value([table]) for table in tables])
    corrected = np.ones(len(p))
    families = np.array([_FAMILY.get(feature.kind, feature.kind) for feature in features])
    for family in set(families.tolist()):
        corrected[families == family] = adjusted(p[families == family])
    result = []
    for feature, table, one, q in zip(features, tables, p.tolist(), corrected.tolist(), strict=True):
        if q > settings.false_discoveries or not table.good:
            continue
        rate = (table.good_with / table.with_it) / (table.good / table.episodes)
        wanted = "success" if rate > 1 else "failure"
        speak = [episode for episode in seen if feature in episode.features and episode.outcome == wanted]
        result.append(
            Pattern(
                feature=feature,
                agent=agent,
                good_with=table.good_with,
                with_it=table.with_it,
                good=table.good,
                count=table.episodes,
                lift=rate,
                p=one,
                q=q,
                odds=odds_interval([table]),
                held_out_lift=lift(kept_back, feature),
                within_p=_within(seen, feature),
                sources=tuple(episode.experience for episode in speak if episode.experience is not None),
            )
        )
    return result


def _table(episodes: Sequence[Episode], feature: Feature) -> Table:
    having = [one for one in episodes if feature in one.features]
    good = sum(one.outcome == "success" for one in episodes)
    return Table(sum(one.outcome == "success" for one in having), len(having), good, len(episodes))


def _within(episodes: Sequence[Episode], feature: Feature) -> float | None:
    tasks: dict[str, list[Episode]] = defaultdict(list)
    for one in episodes:
        if one.group is None:
            return None
        tasks[one.group].append(one)
    return p_value([_table(found, feature) for found in tasks.values()])
