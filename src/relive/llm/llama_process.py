"""The process that `LocalServer` starts: llama.cpp's server and nothing else. Run by path, never imported.

It takes its settings as JSON in the first argument, answers with one line of JSON on standard output (``address`` or
``error``) and lives as long as its standard input is open, so that it ends with the process that started it, however
that one ends. It imports nothing of Relive, to start fast.
"""

import json
import os
import signal
import sys


def main() -> int:
    """Serves until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    options = json.loads(sys.argv[1])
    try:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = options["file"]
        params.model_alias = {options["name"]}
        params.hostnames = [options["host"]]
        params.port = options["port"]
        params.n_parallel = options["slots"]
        params.n_ctx = options["context"] * options["slots"]
        params.cpuparams.n_threads = options["threads"]
        params.cpuparams_batch.n_threads = options["threads"]
        params.chat_template = options["chat_template"]
        params.cache_ram_mib = options["cache_mib"]
        params.verbosity = -1
        params.ui = False
        server = xllamacpp.Server(params)
    except (ImportError, RuntimeError) as error:
        _say(error=f"{type(error).__name__}: {error}")
        return 1
    _say(address=server.listening_address)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdin.buffer.read()
    os._exit(0)  # the server's own end waits for calls under way


def _say(**words: str) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
