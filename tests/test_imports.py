"""The rooms of the house, from the bottom up: a room may import only rooms before it in this list."""

import ast
import sys
from pathlib import Path

import pytest

import relive

ROOMS = [
    "errors",
    "experience",
    "rewards",
    "buffer",
    "storage",
    "client",
    "memory",
    "observation",
    "llm",
    "envs",
    "playbook",
    "reflect",
    "train",
    "rollout",
    "team",
    "learner",
    "gateway",
    "server",
    "demo",
    "doctor",
    "integrations",
    "cli",
]
HEAVY = {
    "gymnasium",
    "matplotlib",
    "openai",
    "peft",
    "pyarrow",
    "stable_baselines3",
    "torch",
    "transformers",
    "trl",
    "xllamacpp",
}
PACKAGE = Path(relive.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room that a file of the package lives in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Full dotted names of all that a file imports, those inside functions included unless told otherwise."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    room = room_of(path)
    if room in {"__init__", "__main__"}:
        return
    assert room in ROOMS, f"{room} is in no place of the house: add it to the design's list and to ROOMS"
    imported = {name.split(".")[1] for name in imports(path) if name.startswith("relive.")} - {"__version__"}
    below = {other for other in imported & set(ROOMS) if ROOMS.index(other) > ROOMS.index(room)}
    assert not below, f"{room} imports {below}, which stand below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_optional_parts_are_imported_only_where_they_are_used(path: Path) -> None:
    if room_of(path) in {"train", "integrations"}:
        return
    heavy = {name.split(".")[0] for name in imports(path, top_level_only=True)} & HEAVY
    assert not heavy, f"{path.name} imports {heavy} at the top: the base install has none of them"


def test_importing_relive_loads_no_optional_part() -> None:
    import subprocess

    code = f"import sys, relive, relive.cli; print(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_file_has_outgrown_one_idea() -> None:
    long = {str(p.relative_to(PACKAGE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 550}
    assert not long
