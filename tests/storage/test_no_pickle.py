"""Loading anything runs no code that came with it (STO-11)."""

import ast
import gzip
import io
import pickle  # noqa: TID251 - the bomb
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest
import zstandard
from typer.testing import CliRunner

import relive
from relive.cli.app import app
from relive.errors import ReliveError
from relive.experience import Feedback, TokenTrace, Transition
from relive.storage import SqliteStorage, dictionaries
from relive.storage.importer import import_file

PACKAGE = Path(relive.__file__).parent


class Bomb:
    """Makes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> object:
        return open, (str(self.marker), "w")


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    marker = tmp_path / "cases_marker"
    yield marker
    assert not marker.exists(), "code that came with the data was run"


@pytest.fixture(params=[0, 2, 4, 5])
def bomb(marker: Path, request: pytest.FixtureRequest) -> bytes:
    return pickle.dumps(Bomb(marker), protocol=request.param)


def test_the_bomb_goes_off_when_it_is_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    pickle.loads(pickle.dumps(Bomb(marker))).close()  # noqa: S301
    assert marker.exists()


def run(*arguments: object) -> str:
    """Runs a command that must fail with a sentence; returns it."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    return done.output


def test_sto_11_a_pickle_in_the_place_of_a_store_is_no_store(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(bomb * (1 + 4096 // len(bomb)))
    for opened in (relive.open, SqliteStorage):
        with pytest.raises(ReliveError, match="not a Relive store"):
            opened(path)
    for command in (["stats"], ["check"], ["experiences", "list"], ["audit"], ["forget", "--agent", "a", "--yes"]):
        assert "s.db" in run(*command, path)
    run("recover", path, tmp_path / "new.db")
    run("backup", path, tmp_path / "copy.db")
    run("export", path, "--to", tmp_path / "out.jsonl")


def packed(content: bytes, how: str) -> bytes:
    if how == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data.pkl", content)
        return file.getvalue()
    return {"": content, "gz": gzip.compress(content), "zst": zstandard.compress(content)}[how]


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "in.pkl"])
@pytest.mark.parametrize("how", ["", "gz", "zst", "zip"])
def test_sto_11_a_pickle_in_the_place_of_an_import_is_refused(tmp_path: Path, bomb: bytes, name: str, how: str) -> None:
    path = tmp_path / (f"{name}.{how}" if how else name)
    path.write_bytes(packed(bomb, how))
    with SqliteStorage(tmp_path / "s.db") as store:
        with suppress(ReliveError):
            assert import_file(path, store).imported == 0
        assert len(store) == 0
    run("import", path, tmp_path / "s.db")


BLOBS = [
    *(("payload", "body", "codec = 0"), ("payload", "body", "codec = 1"), ("payload", "body", "codec = 16")),
    *(("next_state", "body", "codec = 0"), ("next_state", "body", "codec = 1")),
    *(("token_trace", "body", "parts = parts"), ("dictionary", "body", "created_at = created_at")),
    *(("feedback", "demonstration", "reward = reward"), ("index_state", "body", "one = one")),
    *(("index_ids", "body", "chunk = chunk"), ("index_priorities", "body", "chunk = chunk")),
    *(("index_log", "slots", "number = number"), ("index_log", "ids", "number = number")),
    *(("index_log", "priorities", "number = number"), ("change", "ids", "kind = kind")),
    ("experience", "uid", "step = step"),
]


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a row in every table that holds blobs."""
    path = tmp_path_factory.mktemp("whole") / "s.db"
    trace = TokenTrace(token_ids=np.arange(10), mask=np.ones(10), logprobs=np.zeros(10), versions=np.arange(10))
    with pytest.MonkeyPatch.context() as patched, relive.open(path) as memory:
        patched.setattr(dictionaries, "TRAIN_AT", 200)
        for start in range(0, 300, 100):
            memory.add_batch(
                [Transition(state=f"the state of customer {n} " * 9, action=n) for n in range(start, start + 100)]
            )
        memory.storage._trainer.wait()
        first = memory.add(Transition(state="traced " * 20, action=1, tokens=trace))
        memory.storage.set_next_state(first, {"text": "later " * 30})
        memory.feedback(first, 1.0, demonstration={"right": "action"})
        memory.remove([3, 7, 9])
        memory.storage.compact()  # now the index is in its chunks, and what follows in its log
        memory.update_priorities([1, 2], [0.5, 2.0])
        memory.storage.append([Transition(state=0, action=0)], uids=[b"u" * 16])
    return path


@pytest.mark.parametrize(("table", "column", "setting"), BLOBS)
def test_sto_11_a_pickle_in_a_blob_of_a_store_is_only_bytes(
    tmp_path: Path, marker: Path, whole_store: Path, table: str, column: str, setting: str
) -> None:
    path = tmp_path / "s.db"
    shutil.copy(whole_store, path)
    bomb = pickle.dumps(Bomb(marker))
    for content in (bomb, zstandard.compress(bomb)):
        one = "WHERE uid IS NOT NULL" if column == "uid" else ""
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute(f"UPDATE {table} SET {setting}, {column} = ? {one}", (content,))  # noqa: S608
            assert connection.changes() > 0
        everything(path)
    CliRunner().invoke(app, ["check", str(path)])
    CliRunner().invoke(app, ["recover", str(path), str(tmp_path / "new.db")])
    CliRunner().invoke(app, ["export", str(path), "--to", str(tmp_path / "out.jsonl")])


def everything(path: Path) -> None:
    """Reads all there is to read; an error is the store's own, and names what is wrong."""

    def draw() -> None:
        with relive.open(path) as memory:
            list(memory.sample(64).experiences)
            memory.feedback(1, 0.5)

    def look() -> None:
        with SqliteStorage(path, readonly=True) as store:
            store.stats()
            store.changes(0)
            store.priorities()
            store.audit()
            store.feedback_of(301)
            for stored in store.query(limit=1000):
                stored.transition.to_dict()

    for act in (draw, look):
        try:
            act()
        except ReliveError:
            continue


def test_sto_11_a_pickle_in_a_setting_or_a_list_of_tags_is_only_text(tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "s.db"
    with SqliteStorage(path) as store:
        store.append([Transition(state="s", action="a", tags=("x",))])
        store.feedback(Feedback(experience_id=1, reward=1.0))
    text = pickle.dumps(Bomb(marker), protocol=0).decode("ascii")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE setting SET value = ?", (text,))
        connection.execute("UPDATE experience SET tags = ?", (text,))
    with suppress(msgspec.DecodeError):
        everything(path)


FORBIDDEN_MODULES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
RUNS_CODE_ON_PURPOSE = {"rewards/sandbox_child.py"}
"""The child process of `rewards.sandbox` is there to run an agent's program; it never sees a store or an import."""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sto_11_no_part_of_the_package_loads_code_with_data(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)])
    }
    assert not imported & FORBIDDEN_MODULES
    for name, call in calls(tree):
        arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert arguments.get("allow_pickle", "False") == "False", ast.unparse(call)
        if name.endswith("load") and name.split(".")[0] in {"torch", "np", "numpy"}:
            assert name == "torch.load", f"{name}: use frombuffer, or the codec"
            assert arguments.get("weights_only") == "True", ast.unparse(call)
        if name.startswith("yaml."):
            assert name == "yaml.safe_load", f"{name}: only safe_load makes nothing but plain values"
        if name in FORBIDDEN_CALLS:
            assert str(path.relative_to(PACKAGE)) in RUNS_CODE_ON_PURPOSE, ast.unparse(call)
        if name in {"importlib.import_module", "import_module"}:
            assert isinstance(call.args[0], ast.Constant), f"{ast.unparse(call)} loads what data may name"
