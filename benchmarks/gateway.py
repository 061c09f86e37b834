"""What the gateway costs: an upstream with 20 ms latency, called directly, through Relive, and through its peers.

    python benchmarks/gateway.py [--quick] [--peers PYTHON]

1, 8 and 32 clients, answers whole and as streams of 20 pieces 2 ms apart, all targets one after the other in each
round. Relive runs with all of it on: a key, a budget, prices, recording, the journal. Peers, where they are installed
(`pip install tensorzero==2026.6.0 'litellm[proxy]'`, best into an environment of their own whose Python is named):
TensorZero's gateway as its Python package brings it, without a database, and in the full run LiteLLM's proxy. Clients,
upstream and gateway share the machine, so figures are compared within the run. Milliseconds are medians over rounds.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

import _gateway_servers as servers
from _gateway_servers import Target
from _report import Bar, report
from relive.storage import SqliteStorage

CLIENTS = (1, 8, 32)
FORMS = ("whole", "stream")
Measured = dict[tuple[str, str, int], list[dict[str, float]]]


def measure(targets: list[Target], rounds: int, seconds: float) -> Measured:
    """What the clients saw, by target, form and number of clients."""
    measured: Measured = {}
    for round_ in range(rounds):
        for form in FORMS:
            for clients in CLIENTS:
                for target in targets[round_ % len(targets) :] + targets[: round_ % len(targets)]:
                    seen = target.load(clients, seconds, form)
                    measured.setdefault((target.name, form, clients), []).append(seen)
    return measured


def median(measured: Measured, target: str, form: str, clients: int, figure: str) -> float:
    """A figure's median over the rounds."""
    return statistics.median(seen[figure] for seen in measured[target, form, clients])


def added(measured: Measured, form: str, clients: int, figure: str, target: str = "relive") -> float:
    """How many milliseconds a target adds."""
    return median(measured, target, form, clients, figure) - median(measured, "direct", form, clients, figure)


def share(measured: Measured, form: str, clients: int, target: str = "relive", of: str = "direct") -> float:
    """A target's rate over that of another, round by round."""
    pairs = zip(measured[target, form, clients], measured[of, form, clients], strict=True)
    return statistics.median(one["rate"] / other["rate"] for one, other in pairs)


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of two seconds, without LiteLLM")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="has the peers installed beside it")
    options = parser.parse_args()
    wanted = ("tensorzero",) if options.quick else ("tensorzero", "litellm")
    peers = [peer for peer in wanted if servers.there(peer, options.peers)]
    rounds, seconds = (2, 2.0) if options.quick else (5, 2.5)
    with tempfile.TemporaryDirectory(prefix="relive-gateway-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        direct = stack.enter_context(servers.upstream(folder))
        base_url = direct.url.removesuffix("/chat/completions")
        relive = stack.enter_context(servers.relive(folder / "relive", base_url))
        start = {"tensorzero": servers.tensorzero, "litellm": servers.litellm}
        others = [stack.enter_context(start[peer](folder / peer, base_url, options.peers)) for peer in peers]
        measured = measure([direct, relive, *others], rounds, seconds)
        memory = relive.memory("VmHWM")
        all_of_it = [seen for (target, _, _), list_ in measured.items() for seen in list_ if target == "relive"]
        answered, failed = (sum(int(seen[figure]) for seen in all_of_it) for figure in ("answered", "failed"))
        seen_by_litellm = servers.litellm_client(relive, options.peers) if "litellm" in peers else []
        stack.close()
        with SqliteStorage(folder / "relive" / "relive.db", readonly=True) as storage:
            recorded = len(storage) - len(seen_by_litellm)
            newest = [row.transition.usage for row in storage.query(newest_first=True, limit=2)][::-1]
    names = ["direct", "relive", *peers]
    print(f"{'':<10}{'clients':>8}" + "".join(f"{target:>34}" for target in names))
    print(f"{'':<18}" + f"{'calls/s':>10}{'p50':>8}{'p99':>8}{'first':>8}" * len(names))
    for form in FORMS:
        for clients in CLIENTS:
            cells = [
                f"{median(measured, target, form, clients, 'rate'):>10.0f}"
                + "".join(f"{median(measured, target, form, clients, f):>8.1f}" for f in ("p50", "p99", "first"))
                for target in names
            ]
            print(f"{form:<10}{clients:>8}" + "".join(cells))
    print()
    figures = {
        f"{target}, {form}, {clients}: {figure}": round(median(measured, target, form, clients, figure), 3)
        for target in names
        for form in FORMS
        for clients in CLIENTS
        for figure in ("rate", "p50", "p99", "first")
    }
    for peer in peers:
        for form in FORMS:
            figures[f"{peer}, {form}, 32: share of the direct rate"] = share(measured, form, 32, peer)
    figures |= {"calls answered": answered, "answers marked pending": sum(seen["pending"] for seen in all_of_it)}
    bars = {
        "added at p50, 8 clients (ms)": Bar(added(measured, "whole", 8, "p50"), 12, at_most=True),
        "added at p99, 8 clients (ms)": Bar(added(measured, "whole", 8, "p99"), 60, at_most=True),
        "added at p50, 32 clients (ms)": Bar(added(measured, "whole", 32, "p50"), 20, at_most=True),
        "added to the first piece, 8 clients (ms)": Bar(added(measured, "stream", 8, "first"), 10, at_most=True),
        "added to a stream's end, 8 clients (ms)": Bar(added(measured, "stream", 8, "p50"), 10, at_most=True),
        "share of the direct rate, 32 clients": Bar(share(measured, "whole", 32), 0.6),
        "share of the direct rate, 32 streams": Bar(share(measured, "stream", 32), 0.75),
        "most resident memory (MB)": Bar(memory, 150, at_most=True),
        "calls failed": Bar(failed, 0, at_most=True),
        "calls answered and not recorded": Bar(max(0, answered - recorded), 0, at_most=True),
    }
    if "litellm" in peers:
        bars["times LiteLLM's rate, 32 clients"] = Bar(share(measured, "whole", 32, of="litellm"), 5)
        kept = [[usage.input_tokens, usage.output_tokens] for usage in newest if usage is not None]
        bars["LiteLLM as a client: usage recorded otherwise than seen"] = Bar(
            int(kept != seen_by_litellm), 0, at_most=True
        )
    report(figures, bars)


if __name__ == "__main__":
    main()
