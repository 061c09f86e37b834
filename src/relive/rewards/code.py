"""Code that an answer contains, run in a process that can do little harm, and rewards that come from running it.

What holds on every POSIX system: a process of its own without the parent's environment (no keys in it), limits on CPU,
memory, file size and wall clock, the whole process group killed at the end. What holds where the system grants it, and
is reported in `CodeRun.isolation`: no network, no files beyond the interpreter and one empty folder, no other process
seen and none left behind (Linux namespaces and Landlock). Name in `require` what must not be missing.

It keeps mistaken and careless code harmless. Tests run inside the process of the code they test, so code written to
deceive them can; `CodePrints` compares outside of it. Against code written to attack the machine, run the whole gateway
in a container or a virtual machine.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from relive.experience import Transition
from relive.rewards.answers import RewardError, fenced_blocks, scorable_text

Wall = Literal["network", "files", "processes"]

_CHILD = Path(__file__).with_name("sandbox_child.py")
_LARGEST_FRAME = 1 << 20
_SYSTEM_FILES = (
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
)


@dataclass(frozen=True, kw_only=True)
class CodeLimits:
    """What code may use.

    Attributes:
        seconds: Wall clock, from its start to its last test.
        cpu_seconds: Processor time of one process.
        memory_bytes: Address space of one process.
        file_bytes: Size of one file, its output among them.
        processes: How many processes at once, where the system can count them apart from the user's others.
    """

    seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    processes: int = 32

    def __post_init__(self) -> None:
        if min(self.seconds, self.cpu_seconds, self.memory_bytes, self.file_bytes, self.processes) <= 0:
            raise RewardError("Every limit of CodeLimits must be above 0.")


@dataclass(frozen=True, kw_only=True)
class CodeRun:
    """What became of one run.

    Attributes:
        ended: ``"ok"``: it ran to its end without an error; ``"error"``: it raised one, left early, or was killed at a
            limit of the operating system; ``"timeout"``: it was stopped at the wall clock's limit.
        passed: For each test whether it passed; all False if the process did not live to run them.
        output: The beginning of what it printed.
        problem: The first error in one line; ``None``: there was none.
        isolation: The walls that stood around it.
    """

    ended: Literal["ok", "error", "timeout"]
    passed: tuple[bool, ...]
    output: str
    problem: str | None
    isolation: frozenset[Wall]


def run_python(
    code: str,
    *,
    tests: Sequence[str] = (),
    stdin: str = "",
    limits: CodeLimits | None = None,
    packages: bool = False,
    require: Sequence[Wall] = (),
) -> CodeRun:
    """Runs Python code in a process of its own, then each test (source text that raises on failure) in its world.

    Args:
        code: Source text.
        tests: Each runs after the code, whether or not the one before passed.
        stdin: What the code reads from its standard input.
        limits: What it may use.
        packages: Whether it may import installed packages, besides Python's own library.
        require: Walls without which it does not run at all.

    Raises:
        RewardError: the system does not grant a wall that is required.
    """
    limits = limits or CodeLimits()
    with tempfile.TemporaryDirectory(prefix="relive-code-") as place:
        folder, outputs = Path(place, "work"), Path(place, "output")
        folder.mkdir()
        outputs.mkdir()
        (outputs / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *_SYSTEM_FILES, str(_CHILD)}
        job = {
            "code": code,
            "stdin": str(outputs / "stdin"),
            "folder": str(folder),
            "readable": sorted(paths),
            "limits": {
                "cpu": limits.cpu_seconds,
                "memory": limits.memory_bytes,
                "file": limits.file_bytes,
                "processes": limits.processes,
            },
        }
        with _Child(outputs / "stdout", packages=packages, seconds=limits.seconds) as child:
            return _talk(child, job, tests, require)


def _talk(child: "_Child", job: dict[str, Any], tests: Sequence[str], require: Sequence[Wall]) -> CodeRun:
    """The frames of one run, in order; see `relive.rewards.sandbox_child`."""
    isolation: frozenset[Wall] = frozenset()
    problem: str | None = None
    passed = [False] * len(tests)
    ended: Literal["ok", "error", "timeout"] = "error"
    try:
        child.write(job)
        isolation = frozenset(child.read()["isolation"])
        missing = sorted(set(require) - isolation)
        if missing:
            raise RewardError(
                f"This system cannot isolate code by {', '.join(missing)}; run it in a container, or require less."
            )
        child.read()
        token = secrets.token_hex(16)
        child.write({"tests": list(tests), "token": token})
        answer = child.read()
        if answer.get("token") == token and len(answer["passed"]) == len(tests):
            passed, problem = [bool(p) for p in answer["passed"]], answer["problem"]
            ended = "ok" if problem is None else "error"
    except TimeoutError:
        ended, problem = "timeout", "It ran longer than its limit."
    except (EOFError, BrokenPipeError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
        problem = "It ended before its tests were through (it left early, or hit a limit of memory or CPU)."
    return CodeRun(ended=ended, passed=tuple(passed), output=child.output(), problem=problem, isolation=isolation)


class _Child:
    """The process that runs the code, killed with its whole group when the block ends."""

    def __init__(self, stdout: Path, *, packages: bool, seconds: float) -> None:
        self._stdout = stdout
        self._answers, answers = os.pipe()
        command = [sys.executable, "-I", *([] if packages else ["-S"]), str(_CHILD), str(answers)]
        try:
            with stdout.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[answers],
                    env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
                    start_new_session=True,
                )
        except OSError:
            os.close(self._answers)
            raise
        finally:
            os.close(answers)
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        self._orders = self._process.stdin.fileno()
        os.set_blocking(self._orders, False)
        self._deadline = time.monotonic() + seconds

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]

    def output(self) -> str:
        """The beginning of what the code printed so far."""
        with self._stdout.open("rb") as file:
            return file.read(_LARGEST_FRAME).decode("utf-8", errors="replace")

    def write(self, value: Any) -> None:
        """Sends one frame.

        Raises:
            TimeoutError: the time is up.
            BrokenPipeError: the process is gone.
        """
        body = msgspec.json.encode(value)
        data = memoryview(len(body).to_bytes(4, "big") + body)
        while data:
            self._wait(self._orders, select.POLLOUT)
            data = data[os.write(self._orders, data) :]

    def read(self) -> Any:
        """The next frame.

        Raises:
            TimeoutError: the time is up.
            EOFError: the process is gone, or what it sends is no frame.
        """
        size = int.from_bytes(self._exactly(4), "big")
        if size > _LARGEST_FRAME:
            raise EOFError
        return msgspec.json.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self._wait(self._answers, select.POLLIN)
            piece = os.read(self._answers, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def _wait(self, descriptor: int, event: int) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000):
            raise TimeoutError


Tests = Sequence[str] | Callable[[Transition], Sequence[str] | None]
"""Tests for all answers, or looked up for each transition (``None``: not known, not scored)."""

Cases = Sequence[tuple[str, str]] | Callable[[Transition], Sequence[tuple[str, str]] | None]
"""Pairs of input and right output for all answers, or looked up for each transition."""


def answer_code(transition: Transition) -> str | None:
    """The Python code of an answer: its blocks marked as Python, else all its blocks, else the whole text."""
    text = scorable_text(transition)
    if text is None:
        return None
    blocks = fenced_blocks(text)
    python = [body for language, body in blocks if language in {"python", "py", "python3"}]
    return "\n".join(python or [body for _, body in blocks]) or text


@dataclass(frozen=True, kw_only=True)
class CodePasses:
    """1 if the answer's code runs without an error and passes its tests, else 0.

    Attributes:
        tests: Source texts that raise on failure, such as ``assert f(2) == 4``.
        partial: Give the share of tests passed instead.
        limits: What the code may use.
        packages: Whether it may import installed packages.
        require: Walls without which nothing is run.
    """

    tests: Tests = ()
    partial: bool = False
    limits: CodeLimits = field(default_factory=CodeLimits)
    packages: bool = False
    require: Sequence[Wall] = ()

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition; takes as long as the code runs."""
        code = answer_code(transition)
        tests = self.tests(transition) if callable(self.tests) else self.tests
        if code is None or tests is None:
            return None
        run = run_python(code, tests=tests, limits=self.limits, packages=self.packages, require=self.require)
        if self.partial and tests:
            return sum(run.passed) / len(tests)
        return float(run.ended == "ok" and all(run.passed))


@dataclass(frozen=True, kw_only=True)
class CodePrints:
    """The share of cases in which the answer's code, given the input, prints the right output.

    The output is compared outside the code's process, line by line, white space at the ends of lines and of the whole
    left out.

    Attributes:
        cases: Pairs of standard input and right output.
        limits: What the code may use in each case.
        packages: Whether it may import installed packages.
        require: Walls without which nothing is run.
    """

    cases: Cases
    limits: CodeLimits = field(default_factory=CodeLimits)
    packages: bool = False
    require: Sequence[Wall] = ()

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition; takes as long as the code runs on all cases."""
        code = answer_code(transition)
        cases = self.cases(transition) if callable(self.cases) else self.cases
        if code is None or not cases:
            return None
        right = 0
        for given, expected in cases:
            run = run_python(code, stdin=given, limits=self.limits, packages=self.packages, require=self.require)
            right += run.ended == "ok" and _lines(run.output) == _lines(expected)
        return right / len(cases)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
