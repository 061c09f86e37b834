"""Experiments: what a variant changes, that an episode keeps it, and what comes of it in the store."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Agent, Memory, Transition
from relive.gateway.request import CallRequest
from relive.playbook.book import Playbook
from relive.playbook.experiment import ExperimentError, Variant, read_variants
from relive.playbook.hook import PromptHook
from relive.playbook.injection import Injection
from relive.storage.text import NOTES_BEGIN

QUESTION = [{"role": "system", "content": "You sell parcels."}, {"role": "user", "content": "Where is my parcel?"}]
PLAIN = Variant(name="as it is")
BRIEF = Variant(name="brief", prompt="Be brief.", model="small")
BARE = Variant(name="without memory", recall=False)


def answered(memory: Memory, injection: Injection, episode: str, rate: dict[str, float], rng: Any) -> str:
    """One call as an agent makes and records it; the name of its variant."""
    plan = injection.plan(QUESTION, agent="support", episode=episode)
    name = plan.variant.name if plan.variant is not None else "none"
    good = rng.random() < rate[name]
    memory.add(
        Transition(
            state={"messages": QUESTION},
            action="x",
            agent="support",
            episode_id=episode,
            outcome="success" if good else "failure",
            info=plan.facts,
        )
    )
    return name


def test_the_best_variant_is_found_from_the_records_and_given_to_every_new_episode(
    memory: Memory, book: Playbook
) -> None:
    book.experiments.start((PLAIN, BRIEF, BARE), delta=0.05)
    injection, rng = Injection(book), np.random.default_rng(0)
    rate = {"as it is": 0.4, "brief": 0.9, "without memory": 0.3}
    first: dict[str, str] = {}
    for number in range(400):
        first[f"e{number}"] = answered(memory, injection, f"e{number}", rate, rng)
        if number % 20 == 19:
            book.follow()
        if (running := book.experiments.running()) is None or running.best is not None:
            break
    result = book.experiments.results()[0]
    assert result.experiment.best == 1
    assert result.episodes == tuple(list(first.values()).count(one.name) for one in (PLAIN, BRIEF, BARE))
    assert result.standing.known
    new = [injection.plan(QUESTION, agent="support", episode=f"new {n}").variant for n in range(20)]
    assert new == [BRIEF] * 20
    for episode, name in first.items():  # by a process that knows nothing but the store
        trial = Playbook(memory).experiments.assign("support", episode)
        assert trial is not None
        assert trial.variant.name == name, "an episode keeps its variant"
    book.experiments.stop()
    assert injection.plan(QUESTION, agent="support", episode="later").variant is None
    assert [entry.after["what"] for entry in memory.storage.audit(action="experiment")] == [
        "started", "decided", "stopped",
    ]  # fmt: skip


def test_an_episode_keeps_its_variant_before_the_store_was_followed_too(memory: Memory, book: Playbook) -> None:
    book.experiments.start((PLAIN, BARE))
    names = [f"e{n}" for n in range(200)]
    before = [book.experiments.assign("support", name) for name in names]
    share = np.mean([one is not None and one.variant == PLAIN for one in before])
    assert abs(share - 0.5) < 0.15
    book.storage.write(
        lambda t: t.connection.execute(
            "UPDATE setting SET value = replace(value, '[0.5,0.5]', '[0.01,0.99]') WHERE name LIKE 'experiments%'"
        )
    ).result()
    after = [book.experiments.assign("support", name) for name in names]
    assert [one.variant for one in after if one] == [one.variant for one in before if one]
    fresh = [book.experiments.assign("support", f"new {n}") for n in range(200)]
    assert np.mean([one is not None and one.variant == PLAIN for one in fresh]) < 0.1


def test_an_experiment_is_about_one_agent_and_one_tenant_if_it_says_so(memory: Memory, book: Playbook) -> None:
    book.experiments.start((PLAIN, BARE), agent="support")
    assert book.experiments.assign("billing", "e") is None
    assert Playbook(memory, tenant="another").experiments.assign("support", "e") is None
    assert book.experiments.assign("support", "e") is not None


def only(book: Playbook, variant: Variant) -> None:
    """Has every episode get this variant."""
    book.experiments.start((variant, PLAIN))
    book.storage.write(
        lambda t: t.connection.execute(
            "UPDATE setting SET value = replace(value, '[0.5,0.5]', '[1.0,0.0]') WHERE name LIKE 'experiments%'"
        )
    ).result()


def test_an_agent_is_as_its_variant_says(memory: Memory, book: Playbook, echo: Any) -> None:
    book.approve(book.add("Name the day of delivery").lesson or 0)
    memory.add(Transition(state={"messages": QUESTION}, action="Here.", agent="support", outcome="success"))
    agent = Agent(echo, memory=memory, name="support", lessons=Injection(book, held_out=0.0))
    only(book, BRIEF)
    answer = agent.ask(QUESTION)
    messages, params = json.loads(answer.text)
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"], "what worked earlier is shown"
    assert params["model"] == answer.transition.policy == "small"
    assert answer.transition.state == {"messages": QUESTION}
    assert answer.transition.info["injected"]["trial"] == [1, 0, 1.0]
    book.experiments.stop()
    book.experiments.start((BARE, Variant(name="also without", recall=False)))
    messages, params = json.loads(agent.ask(QUESTION).text)
    assert messages == QUESTION
    assert "model" not in params


def test_a_gateways_call_is_as_its_variant_says(book: Playbook) -> None:
    only(book, BRIEF)
    hook = PromptHook(Injection(book))
    body = {"model": "large", "messages": QUESTION, "seed": 12345678901234567890123}
    sent, facts = asyncio.run(hook(CallRequest("/v1/chat/completions", json.dumps(body).encode()), "a", "e", {}))
    assert (sent.model, sent.messages()) == ("small", [{"role": "system", "content": "Be brief."}, QUESTION[1]])
    assert bytes(sent.fields["seed"]) == b"12345678901234567890123"
    assert facts["injected"]["trial"][:2] == [1, 0]
    body = {"model": "large", "system": "You sell parcels.", "messages": QUESTION[1:], "max_tokens": 5}
    sent, _ = asyncio.run(hook(CallRequest("/v1/messages", json.dumps(body).encode()), "a", "e", {}))
    assert (sent.value("system"), sent.value("messages")) == ("Be brief.", QUESTION[1:])


def test_without_memory_a_prompt_is_given_nothing_and_the_book_is_not_measured(book: Playbook) -> None:
    number = book.add("Name the day of delivery").lesson or 0
    book.approve(number)
    only(book, BARE)
    plan = Injection(book, held_out=0.0).plan(QUESTION, agent="support", episode="e")
    assert NOTES_BEGIN not in json.dumps(plan.messages(QUESTION))
    assert plan.facts["injected"]["book"] is None
    assert plan.facts["injected"]["lessons"] == []


def test_what_makes_no_experiment_is_refused_in_a_sentence(book: Playbook, tmp_path: Path) -> None:
    experiments = book.experiments
    with pytest.raises(ExperimentError, match="two variants"):
        experiments.start((PLAIN,))
    with pytest.raises(ExperimentError, match="a name of its own"):
        experiments.start((PLAIN, PLAIN))
    with pytest.raises(ExperimentError, match="delta is 1"):
        experiments.start((PLAIN, BARE), delta=1)
    with pytest.raises(ExperimentError, match="No experiment runs"):
        experiments.stop()
    experiments.start((PLAIN, BARE))
    with pytest.raises(ExperimentError, match="Experiment 1 runs; stop it first"):
        experiments.start((PLAIN, BARE))
    path = tmp_path / "variants.toml"
    for text, match in (("x = [", "no TOML"), ("x = 1", "no variants"), ('[[variants]]\nnaem = "a"', "naem|name")):
        path.write_text(text)
        with pytest.raises(ExperimentError, match=match):
            read_variants(path)
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_variants(tmp_path / "none.toml")
    path.write_text(
        '[[variants]]\nname = "as it is"\n[[variants]]\nname = "brief"\nprompt = "Be brief."\nmodel = "small"'
    )
    assert read_variants(path) == (PLAIN, BRIEF)
