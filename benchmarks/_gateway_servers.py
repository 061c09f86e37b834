"""What the gateway's benchmarks start, each in a process of its own: an upstream, Relive, TensorZero, LiteLLM."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from relive.server.build import open_keys

HERE = Path(__file__).parent
CHAT = "/v1/chat/completions"


class Target(NamedTuple):
    """Where clients call.

    Attributes:
        name: What it is called in the report.
        url: The address of chat completions.
        key: What they show.
        model: What they ask for.
        process: The process that serves it; ``None``: the upstream itself.
    """

    name: str
    url: str
    key: str = "none"
    model: str = "bench-1"
    process: "subprocess.Popen[bytes] | None" = None

    def load(self, clients: int, seconds: float, form: str) -> dict[str, float]:
        """What so many clients see of it in so many seconds (`_gateway_load`)."""
        script = str(HERE / "_gateway_load.py")
        command = [sys.executable, script, self.url, str(clients), str(seconds), form, self.key, self.model]
        done = subprocess.run(command, check=True, capture_output=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def memory(self, field: str = "VmRSS") -> float:
        """Resident memory in MB; with ``VmHWM`` the most it ever was."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(field)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(url: str, process: "subprocess.Popen[bytes]", seconds: float = 60.0) -> None:
    """Returns once something answers there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - an address of our own
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None:
                raise AssertionError(f"{process.args!r} ended with {process.returncode}.") from None
            time.sleep(0.1)
    raise AssertionError(f"Nothing answers at {url}.")


@contextlib.contextmanager
def running(
    command: list[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process, ended in the end; what it says is in a file of the folder."""
    with (folder / f"{Path(command[-1]).stem}.{free_port()}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **(env or {})}, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextlib.contextmanager
def upstream(folder: Path) -> Iterator[Target]:
    """The upstream that all of them call."""
    port = free_port()
    with running([sys.executable, str(HERE / "_gateway_upstream.py"), str(port)], folder) as process:
        wait_for(f"http://127.0.0.1:{port}/", process)
        yield Target("direct", f"http://127.0.0.1:{port}{CHAT}", process=process)


@contextlib.contextmanager
def relive(folder: Path, base_url: str, store: Path | None = None) -> Iterator[Target]:
    """Relive with all of it on: a key, a budget, prices, recording, the journal; its spool is in the folder."""
    store, port = store or folder / "relive.db", free_port()
    folder.mkdir(exist_ok=True)
    ledger, keys = open_keys(store)
    key, _ = keys.create("bench", ["call", "read"])
    ledger.close()
    (folder / "relive.toml").write_text(
        textwrap.dedent(f"""
            [server]
            port = {port}
            keys = "required"

            [store]
            path = "{store}"
            spool = "{folder / "spool"}"

            [[models]]
            name = "bench-1"
            upstream = "{base_url}"
            price = {{ input = 1.25, output = 10 }}

            [[budgets]]
            day = 1000000
            month = 10000000
            """)
    )
    command = [sys.executable, "-c", "from relive.cli import main; main()", "serve", "--config", "relive.toml"]
    with running(command, folder) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/healthz", process)
        yield Target("relive", url + CHAT, key, process=process)


TENSORZERO = """
    import sys, time
    import tensorzero
    gateway = tensorzero._start_http_gateway(
        config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
    )
    with open(sys.argv[2], "w") as file:
        file.write(gateway.base_url)
    time.sleep(1e6)
    """


@contextlib.contextmanager
def tensorzero(folder: Path, base_url: str, python: str = sys.executable) -> Iterator[Target]:
    """TensorZero's gateway as its Python package brings it, without a database."""
    folder.mkdir(exist_ok=True)
    (folder / "tensorzero.toml").write_text(
        textwrap.dedent(f"""
            [gateway]
            observability.enabled = false

            [models.bench-1]
            routing = ["bench"]

            [models.bench-1.providers.bench]
            type = "openai"
            api_base = "{base_url}"
            model_name = "bench-1"
            api_key_location = "none"
            """)
    )
    command = [python, "-c", textwrap.dedent(TENSORZERO), "tensorzero.toml", "address"]
    with running(command, folder) as process:
        address = folder / "address"
        for _ in range(600):
            if address.exists() and address.read_text():
                break
            assert process.poll() is None, "TensorZero's gateway did not start; its log says why."
            time.sleep(0.1)
        base = address.read_text().rstrip("/")
        url = f"{base}{'' if base.endswith('/v1') else '/openai/v1'}/chat/completions"
        yield Target("tensorzero", url, model="tensorzero::model_name::bench-1", process=process)


@contextlib.contextmanager
def litellm(folder: Path, base_url: str, python: str = sys.executable) -> Iterator[Target]:
    """LiteLLM's proxy as its guide for production says: one worker, logs at errors only, no verbose output."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    (folder / "litellm.yaml").write_text(
        textwrap.dedent(f"""
            model_list:
              - model_name: bench-1
                litellm_params:
                  model: openai/bench-1
                  api_base: {base_url}
                  api_key: none
            general_settings:
              master_key: sk-bench-0000
            litellm_settings:
              set_verbose: false
              json_logs: true
              request_timeout: 600
            """)
    )
    command = [str(Path(python).with_name("litellm")), "--config", "litellm.yaml", "--port", str(port)]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with running([*command, "--host", "127.0.0.1", "--num_workers", "1"], folder, env) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health/liveliness", process, 180)
        yield Target("litellm", url + CHAT, "sk-bench-0000", process=process)


def litellm_client(target: Target, python: str) -> list[list[int]]:
    """The tokens in and out that LiteLLM as a client saw of a whole answer and of a streamed one."""
    script = str(HERE / "_gateway_litellm_client.py")
    command = [python, script, target.url.removesuffix("/chat/completions"), target.key, target.model]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, check=True, capture_output=True, env=env)
    seen: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return seen


def there(package: str, python: str) -> bool:
    """Whether a package is installed beside a Python."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0
