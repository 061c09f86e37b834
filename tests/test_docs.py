"""Every snippet and command of the README and the docs runs.

The ``python`` and ``bash`` blocks of one page run from top to bottom in one empty folder and one Python session, so
that a reader who follows the page gets what the page says. A page that talks to a model names the address below; here
it is a real one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODEL_ADDRESS = "http://127.0.0.1:8089/v1"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_BY_OTHER_TESTS = ("make ", "git ", "cd ")
SESSION = """
import pathlib, sys
namespace = {"__name__": "__main__"}
for path in map(str.strip, sys.stdin):
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), namespace)
    print("ran", path, flush=True)
"""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and text of each runnable block, in order."""
    return BLOCK.findall(page.read_text())


def commands(body: str) -> list[str]:
    """The commands of one shell block; a line that ends with a backslash goes on in the next."""
    lines = body.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


@contextmanager
def python_session(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs the files whose paths it is sent, one after another."""
    with subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", SESSION],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0, output
        finally:
            process.kill()


def run_snippet(session: subprocess.Popen[str], file: Path) -> None:
    """Runs one file in the session and waits for its end; a failure shows what it printed."""
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write(f"{file}\n")
    session.stdin.flush()
    printed = ""
    while f"ran {file}" not in printed:
        line = session.stdout.readline()
        assert line, f"{file.name} failed:\n{file.read_text()}\n{printed}"
        printed += line


def run_command(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Runs one line of shell; a failure shows what it printed."""
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"


@contextmanager
def server(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A command that the page starts beside the others (it ends with ``&``); it must end well when it is told to."""
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            ["bash", "-c", f"exec {command.removesuffix('&')}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            printed = ""
            while "Ctrl-C" not in printed:  # what a server says once it answers
                line = process.stdout.readline()
                assert line, f"{command}:\n{printed}{(folder / 'server.log').read_text()}"
                printed += line
            yield
            process.terminate()
            assert process.wait(timeout=60) == 0, (folder / "server.log").read_text()
        finally:
            process.kill()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    with ExitStack() as servers, python_session(tmp_path, environment) as session:
        for number, (language, body) in enumerate(blocks(page)):
            if MODEL_ADDRESS in body:
                body = body.replace(MODEL_ADDRESS, request.getfixturevalue("local_server").base_url)
            if language == "python":
                file = tmp_path / f"snippet_{number}.py"
                file.write_text(body)
                run_snippet(session, file)
                continue
            for command in commands(body):
                if command.endswith(" &"):
                    servers.enter_context(server(command, tmp_path, environment))
                elif not command.startswith(RUN_BY_OTHER_TESTS):
                    run_command(command, tmp_path, environment)


def test_every_make_target_that_is_mentioned_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for language, body in blocks(page):
            for command in commands(body) if language == "bash" else []:
                if command.startswith("make "):
                    assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), f"{page.name}: {command}"
