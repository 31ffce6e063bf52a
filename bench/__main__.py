"""`python -m bench`: measure everything, print a table, write `bench/latest.json`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import pca, record
from .flow import Flow
from .head import Head
from .mixture import EM, Init, Score
from .timing import matrix_product_peak, use_threads

HERE = Path(__file__).resolve().parent
THEIRS = ("sklearn_seconds", "freia_seconds", "freia_relu_seconds")
# What bare matrix products reached on such a machine, before there was a library: a distance to see, not a goal.
LIMITS = {
    **{"em-d100": 4.9, "em-d512": 4.9, "score-d100": 3.5, "score-d512": 4.5, "flow-step": 2.4, "flow-grid": 2.0},
    **{"head-batch-1": 7.9, "head-batch-256": 1.2, "head-batch-1-pca100": 0.5, "head-batch-256-pca100": 0.1},
    "pca-memory-gb": 0.38,
}

FULL: dict[str, Any] = {
    "peak": 2048,
    "em-d100": {"dim": 100, "rows": 60_000, "steps": 5, "rounds": 5},
    "em-d512": {"dim": 512, "rows": 50_000, "steps": 2, "rounds": 3},
    "init-d100": {"dim": 100, "rows": 60_000, "rounds": 5},
    "init-d512": {"dim": 512, "rows": 50_000, "rounds": 3},
    "score-d100": {"dim": 100, "rows": 10_000, "train_rows": 20_000, "rounds": 9},
    "score-d512": {"dim": 512, "rows": 10_000, "train_rows": 20_000, "rounds": 3},
    "head": {"width": 64, "reduced": 100, "rows": 10_000},
    "head-rounds": {1: (60, 10), 256: (11, 1)},  # for each batch: ours, and the others beside it
    "flow": {"dim": 100, "rows": 750, "points": 1000, "rounds": 30},
    "pca": {"rows": 50_000, "dim": 16_384, "keep": 512, "fewer": 10_000},
    "pca-threads": (1, 2),
}
QUICK: dict[str, Any] = {
    "peak": 128,
    "em-d100": {"dim": 8, "rows": 5_000, "steps": 2, "rounds": 1, "pause": 0},
    "em-d512": {"dim": 32, "rows": 5_000, "steps": 1, "rounds": 1, "pause": 0},
    "init-d100": {"dim": 8, "rows": 1_000, "rounds": 1, "pause": 0},
    "init-d512": {"dim": 32, "rows": 2_500, "rounds": 1, "pause": 0},
    "score-d100": {"dim": 8, "rows": 100, "train_rows": 1_000, "rounds": 1, "pause": 0},
    "score-d512": {"dim": 32, "rows": 100, "train_rows": 2_500, "rounds": 1, "pause": 0},
    "head": {"width": 2, "reduced": 8, "rows": 1_000},
    "head-rounds": {1: (3, 1), 256: (2, 1)},
    "flow": {"dim": 6, "rows": 20, "points": 10, "rounds": 2, "width": 8},
    "pca": {"rows": 300, "dim": 2_304, "keep": 16, "fewer": 300},
    "pca-threads": (2,),  # each takes a fresh process, which imports torch again
}


def entries(size: dict[str, Any], counts: list[int], only: str) -> Iterator[record.Entry]:
    """Each measurement as soon as it is there; what both numbers of threads share is prepared once."""
    peaks = partial(matrix_product_peak, size["peak"])
    for kind in (EM, Init, Score):
        for name in [key for key in size if key.startswith(f"{kind.__name__.lower()}-d") and key.startswith(only)]:
            bench = kind(**size[name])
            for threads in counts:
                with use_threads(threads):
                    before, found, after = peaks(), bench.measure(), peaks()
                    peak = {key: max(before[key], after[key]) for key in before}
                    if "necessary_gflop" in found:
                        found["share_of_peak"] = found["necessary_gflop"] / found["seconds"] / peak["float32_gflops"]
                    yield {"name": name, "threads": threads, **found, "peak": peak}
    if any(f"head-batch-{batch}".startswith(only) for batch in size["head-rounds"]):
        head = Head(**size["head"])
        for threads in counts:
            for batch, rounds in size["head-rounds"].items():
                with use_threads(threads):
                    peak = peaks()
                    for suffix, found in zip(("", "-pca100"), head.measure(batch, *rounds), strict=True):
                        yield {"name": f"head-batch-{batch}{suffix}", "threads": threads, **found, "peak": peak}
    for name in [name for name in ("flow-step", "flow-grid") if name.startswith(only)]:
        flow = Flow(**size["flow"])
        for threads in counts:
            with use_threads(threads):
                before, found, after = peaks(), flow.step() if name == "flow-step" else flow.grid(), peaks()
                peak = {key: max(before[key], after[key]) for key in before}
                found["share_of_peak"] = found["necessary_gflop"] / found["seconds"] / peak["float32_gflops"]
                yield {"name": name, "threads": threads, **found, "peak": peak}
    if "pca-memory-gb".startswith(only):
        for threads in [count for count in counts if count in size["pca-threads"]]:
            with use_threads(threads):
                peak = peaks()
            found = pca.measure(**size["pca"], threads=threads, beside=threads == counts[-1])
            yield {"name": "pca-memory-gb", "threads": threads, **found, "peak": peak}


def row(entry: record.Entry) -> str:
    """One line of the table."""
    number = f"{entry['ratio']:8.2f} ×" if "ratio" in entry else f"{entry['value']:8.3f} {entry['unit']}"
    seconds = f"{entry['seconds']:9.4f} s"
    beside = next((entry[key] for key in (*THEIRS, "forward_seconds") if key in entry), None)
    if beside is not None:
        seconds += f" {beside:9.4f} s"
    notes = {
        "ratio_to_their_best": "{:.2f} × their best",
        "largest_difference": "likelihoods {:.1e} apart",
        "share_of_peak": "{:.0%} of peak",
        "largest_error": "error {:.1e} nats",
        "largest_relative_error": "relative error {:.1e}",
        "outside_percent": "outside the network {:.2f} %",
        "captured": "captured {:.4f}",
    }
    parts = [form.format(entry[key]) for key, form in notes.items() if key in entry]
    if "limit" in entry:
        parts.insert(0, f"limit {entry['limit']:g}")
    parts += [f"{name} {100 * other['extra']:.0f} %" for name, other in entry.get("others", {}).items()]
    text = ", ".join(parts)
    return f"{entry['name']:22}{entry['threads']:3}  {number:13}{seconds:26}{text}"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when a peer was faster somewhere."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; the times mean nothing")
    parser.add_argument("--only", default="", help="names that begin so, such as 'em' or 'score-d512'")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="how many, one run after the other")
    parser.add_argument("--out", type=Path, help="where to write; only a whole run has a default, bench/latest.json")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else FULL
    whole = not options.quick and not options.only and options.threads == [1, 2]
    machine, date, start = record.machine(), record.now(), time.monotonic()
    print(f"{machine['cpu']}, {machine['cores']} cores; {machine['versions']}")
    print(f"{'':22}thr  {'':13}{'ours':>9}   {'beside':>9}")
    found = []
    fastest: dict[str, float] = {}
    for entry in entries(size, options.threads, options.only):
        theirs = [seconds for key, seconds in entry.items() if key in THEIRS]
        if theirs:  # a second thread slows scikit-learn down where its matrices are small
            name = entry["name"]
            fastest[name] = min(fastest.get(name, math.inf), *theirs)
            entry["ratio_to_their_best"] = fastest[name] / entry["seconds"]
        if entry["name"] in LIMITS:
            entry["limit"] = LIMITS[entry["name"]]
        found.append({**entry, "date": date, "machine": machine})
        print(row(entry), flush=True)
    print(f"{time.monotonic() - start:.0f} s")
    out = options.out or (HERE / "latest.json" if whole else None)
    if out is not None:
        record.write(found, out)
    if whole:
        record.append(found, HERE / "history.jsonl")
    slower = [f"{e['name']} at {e['threads']} threads" for e in found if e.get("ratio", 1) < 1]
    if slower and not options.quick:
        print(f"slower than the peer beside it: {', '.join(slower)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
