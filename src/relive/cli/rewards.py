"""`relive rewards check`: whether the rewards in a store are fit to learn from."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, table
from relive.server.words import number, share
from relive.storage import SqliteStorage, Stored

if TYPE_CHECKING:
    from relive.rewards import RewardReport

rewards = typer.Typer(help="Look at rewards.", no_args_is_help=True)

_PAGE = 1_000


@rewards.callback()
def _group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@rewards.command("check")
def check_rewards(
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Only the newest so many.")] = 10_000,
    json: Json = False,
) -> None:
    """Look whether rewards are fit to learn from: missing, all alike, following length, or disputed among judges.

    It does not say whether a reward is right.
    """
    from relive.rewards import check  # here: other commands start faster without it

    with SqliteStorage(file, readonly=True) as store:
        stored = _newest(store, agent, tag, limit)
        judges = _judges(store, stored)
        found = check((one.transition for one in stored), judges=judges)
    if json:
        print_json(found)
    else:
        _tell(found)


def _newest(store: SqliteStorage, agent: str | None, tag: str | None, limit: int) -> list[Stored]:
    """The newest experiences that are not failed tries of another one."""
    found: list[Stored] = []
    after: int | None = None
    while len(found) < limit:
        page = store.query(agent=agent, tag=tag, after=after, limit=_PAGE, newest_first=True)
        found += [one for one in page if "attempt" not in one.outline().tags]
        if len(page) < _PAGE:
            break
        after = page[-1].id
    return found[:limit]


def _judges(store: SqliteStorage, stored: list[Stored]) -> dict[str, list[float | None]]:
    """By source and key, the rewards given to these experiences, those of whole episodes included."""
    given = [{_judge(f.source, f.key): f.reward for f in store.feedback_of(one.id)} for one in stored]
    names = sorted({name for rewards_of_one in given for name in rewards_of_one})
    return {name: [rewards_of_one.get(name) for rewards_of_one in given] for name in names}


def _judge(source: str, key: str) -> str:
    return source if key in ("reward", source.removeprefix("relive:")) else f"{source} ({key})"


def _tell(found: "RewardReport") -> None:
    out = console()
    rows = table("", "", right=("",))
    facts: list[tuple[str, str]] = [
        ("experiences", f"{found.transitions:,}"),
        ("without a reward", share(found.unscored, 0)),
        ("groups with several rewards", f"{found.groups:,}"),
        ("groups whose rewards are all equal", share(found.flat_groups, 0)),
        ("correlation with length", number(found.length_correlation)),
        ("the same within groups", number(found.length_correlation_within_groups)),
    ]
    for name, value in facts:
        rows.add_row(name, value)
    out.print(rows)
    if found.judges:
        pairs = table("judge", "and", "both scored", "mean difference", "opposite order")
        for pair in found.judges:
            cells: list[Any] = [f"{pair.both:,}", number(pair.mean_difference), share(pair.reversed_pairs, 0)]
            pairs.add_row(pair.first, pair.second, *cells)
        out.print(pairs)
    for sentence in found.warnings:
        say(sentence)
    if found.transitions and not found.warnings:
        out.print("Nothing of this kind is wrong with them.", soft_wrap=True)
