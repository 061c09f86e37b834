"""Experiments: which variant of an agent succeeds most often, its instructions, its model, its memory on or off.

Each episode gets one variant, by a keyed hash and in the proportions of `track_and_stop` at its first call, and keeps
it to its end, in whatever process its later calls are made. Which one it was stands in the records of its calls
(`exposures.Injected.trial`), and is read back from them with the outcomes; an episode counts as it was first assigned.
Once the best variant is known every new episode gets it, until a person stops the experiment; then calls are as they
were before it, and it is the person who makes the best variant what is always done.
"""

import tomllib
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import apsw
import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from relive.errors import ReliveError
from relive.playbook import exposures
from relive.playbook.exposures import TRIAL
from relive.playbook.track_and_stop import Standing, proportions, standing
from relive.playbook.uplift import drawn
from relive.storage.connection import fetch
from relive.storage.transaction import Transaction

if TYPE_CHECKING:
    from relive.playbook.book import Playbook

_MOST_EPISODES = 20_000  # whose variants are remembered until they are read back from the store


class ExperimentError(ReliveError, ValueError):
    """An experiment cannot be started, or there is none."""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way for an agent to be; what is not given is as it is without the experiment.

    Attributes:
        name: To tell it from the others.
        prompt: Instructions in place of the agent's own; ``None``: its own.
        model: The model that is asked; ``None``: the one that the call names.
        recall: Whether lessons and past successes are put into its prompts.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    prompt: str | None = None
    model: str | None = None
    recall: bool = True


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Variants that are compared.

    Attributes:
        number: Counts the experiments of a book, from 1.
        agent: Whose calls; ``None``: everybody's.
        variants: What is compared.
        delta: The chance of choosing a wrong one that is accepted.
        proportions: In which new episodes get the variants now.
        best: Position of the variant that is known to be the best; ``None``: not known yet.
        started_at: UTC.
        stopped_at: UTC; ``None``: it runs.
    """

    number: int
    agent: str | None
    variants: tuple[Variant, ...]
    delta: float
    proportions: tuple[float, ...]
    started_at: datetime
    best: int | None = None
    stopped_at: datetime | None = None


class Trial(NamedTuple):
    """The variant of an episode.

    Attributes:
        variant: The variant.
        fact: What the record says: number of the experiment, position of the variant, and the chance with which an
            episode got it (``None``: it was assigned before, and this was not drawn).
    """

    variant: Variant
    fact: tuple[int, int, float | None]


class Result(NamedTuple):
    """What an experiment shows so far.

    Attributes:
        experiment: The experiment.
        episodes: Those whose outcome is known, by variant.
        successes: How many of them succeeded.
        standing: Which variant is best, and how far that is known.
    """

    experiment: Experiment
    episodes: tuple[int, ...]
    successes: tuple[int, ...]
    standing: Standing


class Experiments:
    """The experiments of a book, of which one runs at a time.

    Args:
        book: The book.
    """

    def __init__(self, book: "Playbook") -> None:
        self._book = book
        self._assigned: OrderedDict[tuple[int, str, str], int] = OrderedDict()

    def start(self, variants: tuple[Variant, ...], *, agent: str | None = None, delta: float = 0.05) -> Experiment:
        """Begins to compare variants.

        Raises:
            ExperimentError: one runs already, there are not two variants at least, or a number is out of range.
        """
        names = [one.name for one in variants]
        if len(names) < 2 or len(set(names)) != len(names):
            raise ExperimentError("An experiment needs two variants at least, each with a name of its own.")
        if not 0 < delta < 1:
            raise ExperimentError(f"delta is {delta}; it must be above 0 and below 1.")

        def act(transaction: Transaction) -> Experiment:
            known = _all(transaction.connection, self._book.tenant)
            if known and known[-1].stopped_at is None:
                raise ExperimentError(f"Experiment {known[-1].number} runs; stop it first: relive experiment stop")
            made = Experiment(
                number=len(known) + 1,
                agent=agent,
                variants=variants,
                delta=delta,
                proportions=(1.0 / len(variants),) * len(variants),
                started_at=datetime.now(UTC),
            )
            self._keep(transaction, [*known, made], "started")
            return made

        made: Experiment = self._book.storage.write(act).result()
        return made

    def stop(self) -> Experiment:
        """Ends the experiment that runs: from now on calls are as they were before it.

        Raises:
            ExperimentError: none runs.
        """

        def act(transaction: Transaction) -> Experiment:
            known = _all(transaction.connection, self._book.tenant)
            if not known or known[-1].stopped_at is not None:
                raise ExperimentError("No experiment runs.")
            ended = replace(known[-1], stopped_at=datetime.now(UTC))
            self._keep(transaction, [*known[:-1], ended], "stopped")
            return ended

        ended: Experiment = self._book.storage.write(act).result()
        return ended

    def running(self) -> Experiment | None:
        """The experiment that runs; ``None``: none does."""
        known = self._book.storage.view(lambda connection: _all(connection, self._book.tenant))
        return known[-1] if known and known[-1].stopped_at is None else None

    def results(self) -> list[Result]:
        """All experiments with what they show, the newest first."""
        tenant = self._book.tenant
        return self._book.storage.view(lambda c: [_result(c, tenant, one) for one in reversed(_all(c, tenant))])

    def assign(self, agent: str, episode: str) -> Trial | None:
        """The variant of an episode, the same each time; ``None``: no experiment is about it."""
        running = self.running()
        if running is None or running.agent not in (None, agent):
            return None
        key = (running.number, agent, episode)
        place, chance = self._assigned.get(key), None
        if place is None:
            place = self._book.storage.view(lambda c: _assigned(c, self._book.tenant, key))
        if place is None:
            ends = np.cumsum(running.proportions)
            at = drawn(self._book.key(), f"experiment {running.number}", episode) * float(ends[-1])
            place = min(int(np.searchsorted(ends, at, side="right")), len(ends) - 1)
            chance = running.proportions[place]
        self._assigned[key] = place
        while len(self._assigned) > _MOST_EPISODES:
            self._assigned.popitem(last=False)
        return Trial(running.variants[place], (running.number, place, chance))

    def review(self, transaction: Transaction) -> None:
        """Shares the next episodes out by the outcomes so far, and notes the best variant once it is known."""
        known = _all(transaction.connection, self._book.tenant)
        if not known or known[-1].stopped_at is not None or known[-1].best is not None:
            return
        result = _result(transaction.connection, self._book.tenant, known[-1])
        shares = proportions(np.array(result.episodes, np.float64), np.array(result.successes, np.float64))
        found = replace(known[-1], proportions=tuple(map(float, shares)))
        if result.standing.known:
            best = result.standing.best
            only = tuple(float(place == best) for place in range(len(found.variants)))
            found = replace(found, best=best, proportions=only)
        if found != known[-1]:
            self._keep(transaction, [*known[:-1], found], None if found.best is None else "decided")

    def _keep(self, transaction: Transaction, known: list[Experiment], what: str | None) -> None:
        exposures.remember(transaction.connection, _name(self._book.tenant), known)
        if what is not None:
            newest = known[-1]
            best = None if newest.best is None else newest.variants[newest.best].name
            transaction.audit(
                "experiment",
                who=self._book.author,
                target=f"experiment {newest.number}",
                after={"what": what, "variants": [one.name for one in newest.variants], "best": best},
            )


def read_variants(path: Path) -> tuple[Variant, ...]:
    """Variants from a TOML file with a table ``[[variants]]`` for each.

    Raises:
        ExperimentError: it cannot be read, or something in it is no variant.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(found["variants"], tuple[Variant, ...])
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is no TOML file: {error}.") from error
    except (KeyError, msgspec.ValidationError) as error:
        raise ExperimentError(
            f"{path} holds no variants: write a table [[variants]] for each, with a name and what differs "
            f"(prompt, model, recall). {error if isinstance(error, msgspec.ValidationError) else ''}".rstrip()
        ) from error


def _name(tenant: str) -> str:
    return f"experiments of {tenant}"


def _all(connection: apsw.Connection, tenant: str) -> list[Experiment]:
    found = exposures.remembered(connection, _name(tenant))
    return msgspec.convert(found or [], list[Experiment])


def _assigned(connection: apsw.Connection, tenant: str, key: tuple[int, str, str]) -> int | None:
    number, agent, episode = key
    place: int | None = connection.execute(
        """SELECT shown FROM exposure WHERE lesson_id = ? AND version = ? AND tenant = ? AND agent = ?
        AND episode = ?""",
        (TRIAL, number, tenant, agent, episode),
    ).get
    return place


def _result(connection: apsw.Connection, tenant: str, experiment: Experiment) -> Result:
    rows = fetch(
        connection,
        """SELECT shown, count(*), sum(outcome) FROM exposure WHERE lesson_id = ? AND version = ? AND tenant = ?
        AND known IS NOT NULL GROUP BY shown""",
        (TRIAL, experiment.number, tenant),
    )
    counts = {place: (count, int(good)) for place, count, good in rows}
    episodes, successes = zip(*(counts.get(place, (0, 0)) for place in range(len(experiment.variants))), strict=True)
    found = standing(np.array(episodes, np.float64), np.array(successes, np.float64), experiment.delta)
    return Result(experiment, episodes, successes, found)
