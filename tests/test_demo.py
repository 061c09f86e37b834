"""The demo: what it claims is measured fairly, no label leaks, and an interrupted one goes on."""

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import relive
from relive import Transition
from relive.cli import app
from relive.demo import ARMS, Answered, DemoError, Result, Settings, answers_in, compared, curve, present, run
from relive.demo.bandit import WordCountBandit
from relive.demo.show import OWN_MODEL, farewell
from relive.envs import Banking77
from relive.envs.banking import INTENTS, messages
from relive.errors import ReliveError
from relive.llm import Completion, LocalServer, UnreachableError

LABELS = dict(messages("train"))


class Copycat:
    """Answers like the last demonstration; without one, or where that is not allowed, at random by the question."""

    model = "copycat"

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, Any]]] = []

    def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        self.prompts.append([dict(message) for message in messages])
        allowed = request["response_format"]["json_schema"]["schema"]["properties"]["intent"]["enum"]
        shown = [json.loads(message["content"])["intent"] for message in messages if message["role"] == "assistant"]
        choice = allowed[zlib.crc32(messages[-1]["content"].encode()) % len(allowed)]
        if shown and shown[-1] in allowed:
            choice = shown[-1]
        return Completion(
            message={"role": "assistant", "content": json.dumps({"intent": choice})},
            finish_reason="stop",
            usage=None,
            cost=None,
            latency_ms=0.0,
            attempts=(),
            model=self.model,
            raw={},
        )

    async def chat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        return self.chat_sync(messages, **request)


def mean(rewards: list[float]) -> float:
    return sum(rewards) / len(rewards)


def test_every_demonstration_in_every_prompt_was_earned_before(tmp_path: Path) -> None:
    copycat = Copycat()
    texts = Banking77(count=90, seed=0).texts
    earned: set[tuple[str, str]] = set()  # what the learner got right so far
    begun = 0
    with_demonstrations = 0

    def look(new: list[Answered], _: int) -> None:
        nonlocal begun, with_demonstrations
        prompts, begun = copycat.prompts[begun:], len(copycat.prompts)
        for prompt in prompts:
            turns = prompt[1:-1]
            shown = [
                (question["content"], json.loads(answer["content"])["intent"])
                for question, answer in zip(turns[::2], turns[1::2], strict=True)
            ]
            assert set(shown) <= earned
            with_demonstrations += bool(shown)
        earned.update((texts[one.index], LABELS[texts[one.index]]) for one in new if one.arm == "recall" and one.reward)

    run(Settings(messages=90, file=tmp_path / "demo.db"), on_message=look, model=copycat)
    assert with_demonstrations > 30


def test_recall_helps_with_true_rewards_and_not_with_shuffled_ones(tmp_path: Path) -> None:
    gains = {}
    for shuffled in (False, True):
        settings = Settings(messages=240, file=tmp_path / f"{shuffled}.db", shuffled_rewards=shuffled)
        result = run(settings, model=Copycat())
        gains[shuffled] = mean(result.compared("recall")) - mean(result.compared("random_successes"))
    assert gains[False] > 0.15
    assert abs(gains[True]) < 0.1


def test_arms_are_compared_on_the_same_messages_on_which_nothing_was_tried_out(tmp_path: Path) -> None:
    result = run(Settings(messages=60, file=tmp_path / "demo.db"), model=Copycat())
    lengths = {arm: len(result.compared(arm)) for arm in ARMS}
    assert len(set(lengths.values())) == 1
    assert 8 <= lengths["recall"] <= 19  # of the last 20, 0.7 on average
    explored = {one.index for one in result.answers if one.arm == "recall" and one.explored}
    assert explored == {one.index for one in result.answers if one.arm == "no_llm" and one.explored}
    assert {one.index for one in result.answers if one.arm == "no_memory"} == set(range(40, 60)) - explored
    summary = result.summary()
    assert list(summary) == ["seed", "messages", "accuracy", "seconds", "file"]
    assert summary["accuracy"]["recall"] == {"last_third": pytest.approx(mean(result.compared("recall")), abs=1e-4)}


class Dying(Copycat):
    """A copycat that fails at its 31st answer."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        if len(self.prompts) == 30:
            raise self.error("gone")
        return super().chat_sync(messages, **request)


def test_an_interrupted_demo_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = run(Settings(seed=2, messages=45, file=tmp_path / "whole.db"), model=Copycat())
    file = tmp_path / "parts.db"
    with pytest.raises(KeyboardInterrupt):
        run(Settings(seed=2, messages=45, file=file), model=Dying(KeyboardInterrupt))
    shown: list[int] = []
    result = run(
        Settings(resume=file), model=Copycat(), on_message=lambda new, total: shown.append(len(new)) or shown[0]
    )
    assert result.answers == whole.answers
    assert (result.settings.seed, result.settings.messages) == (2, 45)
    assert sum(shown) == len(whole.answers)
    again = run(Settings(resume=file), model=Copycat())
    assert again.answers == whole.answers


def test_a_call_that_failed_in_mid_demo_is_no_answer_and_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "demo.db"
    with pytest.raises(UnreachableError):
        run(Settings(seed=2, messages=45, file=file), model=Dying(UnreachableError))
    with relive.open(file, readonly=True) as memory:
        before = answers_in(memory)[1]
        assert len(memory.query(error=True)) == 1
    result = run(Settings(resume=file), model=Copycat())
    assert set(before) < set(result.answers)
    assert [one.index for one in result.answers if one.arm == "recall"] == list(range(45))


def test_kill_9_in_mid_demo_loses_nothing_that_was_shown(tmp_path: Path, local_server: LocalServer) -> None:
    file = tmp_path / "demo.db"
    script = (
        "import sys; from pathlib import Path; from relive.demo import Settings, run\n"
        "def show(new, total):\n"
        "    for one in new: print(one.arm, one.index, one.reward, flush=True)\n"
        "run(Settings(messages=12, file=Path(sys.argv[1]), base_url=sys.argv[2], model=sys.argv[3]), on_message=show)\n"
    )
    command = [sys.executable, "-c", script, str(file), local_server.base_url, local_server.model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline().split() for _ in range(10)]
        os.kill(process.pid, signal.SIGKILL)
        shown += [line.split() for line in process.stdout.read().splitlines()]
    with relive.open(file, readonly=True) as memory:
        kept = {(one.arm, str(one.index), str(one.reward)) for one in answers_in(memory)[1]}
    assert {tuple(line) for line in shown} <= kept
    result = run(Settings(resume=file, base_url=local_server.base_url, model=local_server.model))
    assert {(arm, str(index), reward) for arm, index, reward in map(tuple, shown)} <= {
        (one.arm, str(one.index), str(one.reward)) for one in result.answers
    }
    assert [one.index for one in result.answers if one.arm == "recall"] == list(range(12))
    assert len(result.compared("recall")) == len(result.compared("random_successes"))


def test_the_demo_runs_on_the_small_model_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    present(Settings(messages=6), as_json=True)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["file"] == str(tmp_path / "relive-demo.db")
    assert set(summary["accuracy"]) == set(ARMS)
    assert (tmp_path / "relive-demo.png").read_bytes().startswith(b"\x89PNG")
    with relive.open(tmp_path / "relive-demo.db", readonly=True) as memory:
        stored = [one.transition for one in memory.query(agent="recall")]
    assert len(stored) == 6
    assert {one.action for one in stored} <= set(INTENTS)
    present(Settings(resume=Path("relive-demo.db")))
    out = capsys.readouterr().out
    assert all(arm in out for arm in ARMS)
    assert OWN_MODEL in out


def test_a_second_demo_takes_the_next_free_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [run(Settings(messages=3), model=Copycat()).file.name for _ in range(3)]
    assert names == ["relive-demo.db", "relive-demo-2.db", "relive-demo-3.db"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(messages=2), "messages is 2"),
        (Settings(messages=5000), "from 3 to 1972"),
        (Settings(seed=-1), "seed is -1"),
        (Settings(base_url="http://127.0.0.1:9/v1"), "--base-url and --model together"),
        (Settings(model="m"), "--base-url and --model together"),
        (Settings(file=Path("a.db"), resume=Path("b.db")), "not both"),
        (Settings(base_url="nonsense", model="m"), "not the address of an endpoint"),
        (Settings(resume=Path("missing.db")), "no file missing.db"),
        (Settings(base_url="http://127.0.0.1:9/v1", model="m", api_key_env="NOT_SET_HERE"), "NOT_SET_HERE is not set"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_started(
    settings: Settings, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DemoError, match=said):
        run(settings)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    file.write_text("precious")
    with pytest.raises(DemoError, match="exists already"):
        run(Settings(file=file), model=Copycat())
    with pytest.raises(ReliveError, match=r"mine\.db"):
        run(Settings(resume=file), model=Copycat())
    assert file.read_text() == "precious"


def test_a_memory_of_something_else_is_not_taken_for_a_demo(tmp_path: Path) -> None:
    with relive.open(tmp_path / "other.db") as memory:
        memory.add(Transition(state="s", action="a", tags=("demo",)))
    with pytest.raises(DemoError, match="holds no demo"):
        run(Settings(resume=tmp_path / "other.db"), model=Copycat())


def test_an_unreachable_endpoint_is_said_in_one_sentence_with_the_way_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_KEY", "sk-aaaaaaaabbbb")
    monkeypatch.setattr("relive.llm.retry.RetryPolicy.backoff", lambda *_: 0.0)
    file, url = tmp_path / "d.db", "http://user:pass@127.0.0.1:9/v1?secret=1"
    settings = Settings(messages=3, seed=1, file=file, base_url=url, model="m", api_key_env="DEMO_KEY")
    with pytest.raises(ReliveError, match=r"127\.0\.0\.1:9"):
        present(settings)
    advice = f"relive demo --resume {file} --base-url http://127.0.0.1:9/v1 --model m --api-key-env DEMO_KEY\n"
    assert advice in capsys.readouterr().err
    with pytest.raises(DemoError, match=r"begun with m\. Go on with: ") as caught:
        run(Settings(resume=file), model=Copycat())
    assert str(caught.value).endswith(advice.strip())
    result = run(Settings(resume=file, base_url="http://127.0.0.1:9/v1", model="m"), model=Copycat())
    assert (result.settings.seed, result.settings.messages) == (1, 3)
    assert [one.index for one in result.answers if one.arm == "recall"] == [0, 1, 2]


def test_where_nothing_was_kept_no_way_to_go_on_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("relive.demo.runner.LocalServer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        present(Settings(messages=3, file=tmp_path / "d.db"))
    assert "--resume" not in capsys.readouterr().err
    assert not (tmp_path / "d.db").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--messages", "5000"],
        ["--base-url", "http://127.0.0.1:9/v1"],
        ["--base-url", "nonsense", "--model", "m"],
        ["--file", "a.db", "--resume", "b.db"],
        ["--resume", "missing.db"],
    ],
)
def test_wrong_usage_is_exit_code_2_before_anything_is_shown(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == 2
    assert result.stdout == ""


def test_the_bandit_learns_from_right_and_from_wrong() -> None:
    bandit = WordCountBandit(("arrival", "lost", "refund"), 0.0, seed=0)
    for _ in range(3):
        bandit.learn("has my card arrived", "arrival", True)
        bandit.learn("I lost my card", "lost", True)
        bandit.learn("where is the money", "arrival", False)
        bandit.learn("where is the money", "lost", False)
    assert bandit.choose("has it arrived", 0) == ("arrival", False)
    assert bandit.choose("it is lost", 1) == ("lost", False)
    assert bandit.choose("where is the money", 2) == ("refund", False)
    wild = WordCountBandit(("a", "b"), 1.0, seed=0)
    assert {wild.choose("x", step) for step in range(20)} == {("a", True), ("b", True)}


def test_accuracy_leaves_out_messages_on_which_something_was_tried_out() -> None:
    def one(arm: str, index: int, reward: float, explored: bool = False) -> Answered:
        return Answered(arm=arm, index=index, reward=reward, explored=explored)

    answers = [one("recall", 0, 1.0), one("recall", 2, 1.0, explored=True), one("no_llm", 2, 1.0, explored=True)]
    answers += [one("recall", 3, 0.0), one("no_llm", 3, 1.0), one("no_memory", 3, 1.0)]
    assert compared(answers, Settings(messages=4)) == {
        "recall": [0.0],
        "no_memory": [1.0],
        "random_successes": [],
        "no_llm": [1.0],
    }


def test_without_matplotlib_there_is_no_picture_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(settings=Settings(messages=3), answers=[], seconds=1.0, file=tmp_path / "d.db")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert curve.draw(result, tmp_path / "d.png") is False
    assert not (tmp_path / "d.png").exists()
    assert "picture" not in farewell(result, None)
    assert OWN_MODEL in farewell(result, "d.png")
