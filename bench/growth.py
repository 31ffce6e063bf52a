"""`python -m bench.growth`: how time and memory grow with rows, dimensions, classes and components.

Ours beside scikit-learn's and pytorch-ood's, on the CPU, one thread. Every point has a process of its own, forked from
one that has imported everything. A method goes up its axis until the next point would take too long. A run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullFormatter

from hidden_uncertainty.plots import dress

from . import record
from .growth_point import METHODS, RIDGE, STEPS, work

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "images" / "growth.png"
COLOURS = ("#1F5FA8", "#D55E00", "#009E73", "#7A7A7A")  # told apart by those who are blind to some
Point = dict[str, Any]
Axes = dict[str, dict[str, Any]]

FULL: Axes = {
    "rows": {"values": [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]}
    | {"dim": 16, "classes": 10, "components": 5},
    "dim": {"values": [16, 32, 64, 128, 256, 512, 1024, 2048]} | {"rows": 8000, "classes": 2, "components": 2},
    "classes": {"values": [2, 10, 30, 100, 300, 1000]} | {"rows": 20_000, "dim": 32, "components": 2},
    "components": {"values": [1, 2, 4, 8, 16]} | {"rows": 20_000, "dim": 64, "classes": 2},
}
QUICK: Axes = {
    "rows": {"values": [200, 800], "dim": 4, "classes": 2, "components": 2},
    "components": {"values": [1], "rows": 200, "dim": 4, "classes": 2},
}
QUANTITIES = {"fit_seconds": "fit, s", "score_seconds": "score, s", "fit_mb": "memory of the fit, MB"}


def methods(axis: str) -> list[str]:
    """Who goes up an axis; one Gaussian a class has no components to grow with."""
    return [method for method in METHODS if axis != "components" or "one Gaussian" not in method]


def too_long(points: list[Point], value: int, limit: float) -> bool:
    """Whether the next point of a method is likely to take longer than the limit, by its last two."""
    done = [(p["value"], p["fit_seconds"] + p["score_seconds"]) for p in points]
    if not done:
        return False
    slope = 1.0
    if len(done) > 1:
        (low, before), (high, after) = done[-2:]
        slope = max(1.0, math.log(after / before) / math.log(high / low))
    return done[-1][1] * (value / done[-1][0]) ** slope > limit


def exponents(points: list[Point]) -> list[Point]:
    """Slopes of log quantity against log value, over the upper half of each curve, where constants matter less."""
    found = []
    for axis, method in dict.fromkeys((p["axis"], p["method"]) for p in points):
        own = [p for p in points if (p["axis"], p["method"]) == (axis, method)]
        for quantity in QUANTITIES:
            curve = [(p["value"], p[quantity]) for p in own if p[quantity] > 0]
            upper = curve[-max(3, -(-len(curve) // 2)) :]
            if len(upper) < 3:
                continue
            x, y = np.log(np.array(upper, dtype=float)).T
            slope = float(np.polyfit(x, y, 1)[0])
            found.append({"axis": axis, "method": method, "quantity": quantity})
            found[-1] |= {"exponent": round(slope, 3), "points": len(upper)}
    return found


def figure(result: dict[str, Any]) -> Figure:
    """Time and memory along every axis, exponents in the corner."""
    axes = list(result["axes"])
    picture = Figure(figsize=(4.2 * len(axes), 9.5), layout="constrained", facecolor="white")
    panels = picture.subplots(len(QUANTITIES), len(axes), squeeze=False)
    slopes = {(e["axis"], e["method"], e["quantity"]): e["exponent"] for e in result["exponents"]}
    for column, axis in enumerate(axes):
        fixed = ", ".join(f"{name} {size:,}" for name, size in result["axes"][axis].items() if name != "values")
        for panel, (quantity, label) in zip(panels[:, column], QUANTITIES.items(), strict=True):
            for colour, method in enumerate(METHODS):
                own = [p for p in result["points"] if p["axis"] == axis and p["method"] == method]
                curve = [(p["value"], p[quantity]) for p in own if p[quantity] > 0]
                if curve:
                    panel.loglog(*zip(*curve, strict=True), "o-", ms=4, color=COLOURS[colour], label=method)
            known = [(colour, slopes.get((axis, method, quantity))) for colour, method in enumerate(METHODS)]
            for line, (colour, slope) in enumerate(reversed([each for each in known if each[1] is not None])):
                place = (0.98, 0.04 + 0.085 * line)
                panel.annotate(f"∝ {slope:.2f}", place, xycoords="axes fraction", ha="right", color=COLOURS[colour])
            panel.set(xlabel=axis, ylabel=label)
            panel.margins(x=0.08)
            dress(panel)
            panel.xaxis.set_major_formatter("{x:,.0f}")
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.4)))
        panels[0, column].set_title(fixed, fontsize=11)
    handles = {line.get_label(): line for panel in panels.flat for line in panel.lines}
    if handles:
        picture.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return picture


def resume(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What a stopped run of the same sizes on the same machine had measured, or nothing yet."""
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if not before["complete"] and all(before[key] == json.loads(json.dumps(value)) for key, value in about.items()):
            return before
    return {**about, "date": record.now(), "seconds": 0.0, "complete": False, "points": [], "notes": []}


def climb(result: dict[str, Any], limit: float) -> Iterator[Point]:
    """Measure what is missing, each axis from its least value up; yield every point as it is there."""
    context = multiprocessing.get_context("forkserver")
    # All that a child imports: it would take longer than most points.
    context.set_forkserver_preload(["bench.growth_point", "bench.record", "matplotlib.figure"])
    for axis, sizes in result["axes"].items():
        for method in methods(axis):
            noted = [note for note in result["notes"] if note["method"] == method and note.get("axis", axis) == axis]
            for value in [] if noted else sizes["values"]:
                own = [p for p in result["points"] if p["axis"] == axis and p["method"] == method]
                if any(p["value"] == value for p in own):
                    continue
                if too_long(own, value, limit):
                    note = f"left out from {value:,} on: it would take more than {limit:g} s."
                    result["notes"].append({"method": method, "axis": axis, "note": note})
                    break
                size = {name: size for name, size in sizes.items() if name != "values"} | {axis: value}
                found = _in_a_process(context, method, size, limit)
                if "missing" in found:
                    result["notes"].append({"method": method, "note": f"not measured: {found['missing']}."})
                    break
                if "stopped" in found:
                    note = f"left out from {value:,} on: {found['stopped']}."
                    result["notes"].append({"method": method, "axis": axis, "note": note})
                    break
                yield {"axis": axis, "value": value, "method": method, **found}


def _in_a_process(context: Any, method: str, size: dict[str, int], limit: float) -> Point:
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(method, size, limit / 4, there))
    process.start()
    there.close()
    try:
        if not here.poll(3 * limit):
            process.kill()
            return {"stopped": f"it took more than {3 * limit:g} s"}
        return here.recv()
    except EOFError:  # it ended without an answer, as the system ends what takes too much memory
        process.join()
        return {"stopped": f"its process ended with {process.exitcode}"}
    finally:
        process.join()
        here.close()


def main(arguments: list[str] | None = None) -> int:
    """Measure every point that is not there yet, fit the exponents, draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; the times mean nothing")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that a point may take")
    parser.add_argument("--out", type=Path, help="where to write; a whole run has a default, bench/growth.json")
    parser.add_argument("--picture", type=Path, help="where to draw; a whole run has a default in docs/images/")
    options = parser.parse_args(arguments)
    out = options.out or (None if options.quick else HERE / "growth.json")
    picture = options.picture or (None if options.quick or options.out else PICTURE)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    about = {
        "command": "python -m bench.growth" + (" --quick" if options.quick else ""),
        "machine": record.machine(),
        "axes": QUICK if options.quick else FULL,
        **{"threads": 1, "steps": STEPS, "ridge": RIDGE, "limit": options.limit},
    }
    result = about | {"points": [], "notes": []} if out is None else resume(out, about)
    spent, start = result.get("seconds", 0.0), time.monotonic()
    for point in climb(result, options.limit):
        result["points"].append(point)
        result["seconds"] = spent + time.monotonic() - start
        print(row(point), flush=True)
        if out is not None:
            record.write(result, out)  # type: ignore[arg-type]
    result |= {"exponents": exponents(result["points"]), "complete": True}
    for note in result["notes"]:
        print(" ".join([note["method"], note.get("axis", ""), note["note"]]))
    for found in result["exponents"]:
        print(f"{found['axis']:12}{found['method']:28}{found['quantity']:16}{found['exponent']:6.2f}")
    if out is not None:
        record.write(result, out)  # type: ignore[arg-type]
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure(result).savefig(picture, dpi=110)
    return 0


def row(point: Point) -> str:
    """One line of the table."""
    times = f"fit {point['fit_seconds']:9.4f} s  score {point['score_seconds']:9.4f} s  {point['fit_mb']:9.1f} MB"
    return f"{point['axis']:12}{point['value']:10,}  {point['method']:28}{times}"


if __name__ == "__main__":
    sys.exit(main())
