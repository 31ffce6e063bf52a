"""`python -m bench.render`: fill bench/RESULTS.md and pages of docs/ from the files in bench/; no number is typed.

A page marks a place with `<!-- bench:NAME -->` and `<!-- /bench -->`; what lies between is replaced. What was not
measured yet says so. bench/RESULTS.md shows all times, docs/speed.md those that a user needs, docs/monitoring.md what
was simulated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = (
    HERE / "RESULTS.md",
    *(HERE.parent / "docs" / name for name in ("speed.md", "monitoring.md", "scale.md", "serving.md")),
)
PLACE = re.compile(r"(<!-- bench:([a-z-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
OTHERS = {
    "ensemble": "ensemble of ten networks",
    "mc-dropout": "MC dropout, ten passes",
    "multivariate-normal": "one `MultivariateNormal` per class",
}
SIZES = {"rows": (100_000, 1_000_000), "dim": (512, 2048), "classes": (100, 1000)}  # of the growth run, for users
ON_A_GPU = {
    "fit-d512": "fit a mixture: 10 classes, 5 components each",
    "score-1m": "score under that mixture",
    "pca": "PCA to 512 components",
    "imagenet-full-fit": "fit 1,000 classes: one full Gaussian per class",
    "imagenet-full-score": "score under these",
    "imagenet-tied-fit": "fit 1,000 classes: one covariance for all (`Mahalanobis`)",
    "imagenet-streamed-fit": "the same, with the rows in a stream",
    "imagenet-tied-score": "score under these",
}
SUFFIX = {"rows": "rows", "dim": "dimensions", "classes": "classes", "components": "components"}


def fill(page: str, folder: Path) -> str:
    """The page with every marked place filled from the files in a folder.

    Example:
        >>> fill("no place here", Path("bench"))
        'no place here'
    """

    def text(match: re.Match[str]) -> str:
        file, history, command, render = SECTIONS[match[2]]
        path = folder / file
        if not path.is_file():
            return f"{match[1]}Not measured yet: `{command}` does.\n{match[3]}"
        result = json.loads(path.read_text(encoding="utf-8"))
        return f"{match[1]}{render(result, _before(folder / history))}\n{match[3]}"

    return PLACE.sub(text, page)


def _before(history: Path) -> dict[str, Any]:
    """The numbers of the last run but one, by name; none where there was no such run."""
    lines = history.read_text(encoding="utf-8").splitlines() if history.is_file() else []
    return json.loads(lines[-2])["numbers"] if len(lines) > 1 else {}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _rounds(values: list[float]) -> str:
    """The median, and the range of the rounds."""
    low, high = _seconds(min(values)), _seconds(max(values))
    return f"{_seconds(median(values))} ({low} to {high})"


def _cpu(entries: list[dict[str, Any]], before: dict[str, float]) -> str:
    """Ratios to the peer beside ours, then shares of the forward pass and memory, then other methods' shares."""
    compared, others = [], []
    for entry in entries:
        name, threads = f"`{entry['name']}`", str(entry["threads"])
        earlier = before.get(f"{entry['name']}/{threads}")
        if "ratio" in entry:
            theirs = entry["sklearn_seconds"] if "sklearn_seconds" in entry else entry["freia_seconds"]
            spread = " ({:.2f} to {:.2f})".format(*entry["ratio_range"]) if "ratio_range" in entry else ""
            cells = [f"{entry['ratio']:.2f} ×{spread}", "" if earlier is None else f"{earlier:.2f} ×"]
            cells.append(f"{entry['ratio_to_their_best']:.2f} ×")
            for key, form in (("share_of_peak", "{:.0%}"), ("limit", "{:g} ×"), ("largest_relative_error", "{:.0e}")):
                cells.append(form.format(entry[key]) if key in entry else "")
            compared.append([name, threads, _seconds(entry["seconds"]), _seconds(theirs), *cells])
        else:
            spread = "" if "quartiles" not in entry else " ({:.2f} to {:.2f})".format(*entry["quartiles"])
            limit = f"{entry['limit']:g} {entry['unit']}" if "limit" in entry else ""
            value = f"{entry['value']:.2f} {entry['unit']}{spread}"
            outside = f"{entry['outside_percent']:.2f} %" if "outside_percent" in entry else ""
            others.append(
                [name, threads, value, "" if earlier is None else f"{earlier:.2f} {entry['unit']}", outside, limit]
            )
    made = _made(entries)
    head = ["", "threads", "ours", "theirs", "ratio (rounds)", "run before", "to their best threads", "of the peak"]
    head += ["limit", "error"]
    below = ["", "threads", "value (quartiles)", "run before", "outside the network", "limit"]
    beside = _beside(entries)
    parts = [table(head, compared), table(below, others), beside, made]
    return "\n\n".join(part for part, rows in zip(parts, (compared, others, beside, made), strict=True) if rows)


def _beside(entries: list[dict[str, Any]]) -> str:
    """What other methods add to the forward pass, one line per method."""
    runs = [entry for entry in entries if entry.get("others")]
    if not runs:
        return ""
    methods = dict.fromkeys(method for entry in runs for method in entry["others"])
    cells = [
        [f"{entry['others'][method]['extra']:.0%}" if method in entry["others"] else "" for entry in runs]
        for method in methods
    ]
    head = [f"`{entry['name']}`, {entry['threads']} thread{'s' * (entry['threads'] > 1)}" for entry in runs]
    return table(["beside it", *head], [[method, *line] for method, line in zip(methods, cells, strict=True)])


def _made(entries: list[dict[str, Any]]) -> str:
    machine = entries[0]["machine"]
    return f"`make bench`, {entries[0]['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {_versions(machine)}"


def _call(entries: list[dict[str, Any]], before: dict[str, float]) -> str:
    """What a call adds to the forward pass on one thread, and what other methods add."""
    runs = [entry for entry in entries if "forward_seconds" in entry and entry["threads"] == 1]
    batches = sorted({entry["batch"] for entry in runs})
    lines: dict[str, dict[int, str]] = {"forward pass alone": {}}
    for entry in sorted(runs, key=lambda entry: -entry["dim"]):
        lines["forward pass alone"][entry["batch"]] = _seconds(entry["forward_seconds"])
        name = f"`LatentDensity`, {entry['dim']} dimensions"
        lines.setdefault(name, {})[entry["batch"]] = f"{entry['value']:+.0f} %"
    for entry in runs:
        for method, found in entry.get("others", {}).items():
            name = OTHERS.get(method, method)
            lines.setdefault(name, {})[entry["batch"]] = f"{100 * found['extra']:+,.0f} %"
    head = ["", *(f"{batch} image{'s' * (batch > 1)}" for batch in batches)]
    rows = [[name, *(cells.get(batch, "") for batch in batches)] for name, cells in lines.items()]
    return f"{table(head, rows)}\n\n{_made(entries)}"


def _default(result: dict[str, Any], before: dict[str, Any]) -> str:
    """What the default adds to a plain pass over the same images."""
    rows = []
    for entry in result["entries"]:
        call, some = entry["name"] == "call", f"{entry['images']:,} image{'s' * (entry['images'] > 1)}"
        what = f"a call with {some}" if call else f"{entry['name']}, {some} in batches of {entry['batch']}"
        number = f"{100 * (entry['ratio'] - 1):+.1f} %" if call else f"{entry['ratio']:.2f} ×"
        times = [_seconds(entry["plain_seconds"]), _seconds(entry["seconds"])]
        rows.append([what, *times, number, f"{entry['outside_percent']:.1f} %", str(entry["rounds"])])
    head = ["", "network alone", "with the default", "ratio, or added", "outside the network", "rounds"]
    where = result.get("gpu", f"{result['machine']['cpu']}, one thread, processor time")
    made = f"`{result['command']}`, {result['date'][:10]}, {where}"
    how = f"{made}, {result['quantile']:.0%} quantile of the rounds, {_versions(result['machine'])}"
    text = f"{table(head, rows)}\n\n{how}"
    return text if "on a gpu" not in result else f"{text}\n\n{_default(result['on a gpu'], before)}"


def _memory(entries: list[dict[str, Any]], before: dict[str, float]) -> str:
    """What principal components take beyond the loader, and what a solver takes that holds all data."""
    text = []
    for entry in [entry for entry in entries if entry["name"] == "pca-memory-gb"][:1]:
        rows, dim = entry["rows"], entry["dim"]
        text.append(
            f"PCA of {rows:,} × {dim:,} numbers ({4e-9 * rows * dim:.1f} GB) to {entry['keep']} components takes "
            f"{entry['value']:.2f} GB beyond what the loader holds."
        )
    for beside in [entry["beside"] for entry in entries if "sklearn" in entry.get("beside", {})][:1]:
        gb = beside["sklearn"]["gb"]
        text.append(f"scikit-learn's solver holds all data and takes {gb:.2f} GB for {beside['rows']:,} rows.")
    return f"{' '.join(text)}\n\n{_made(entries)}"


def _fit(result: dict[str, Any], before: dict[str, Any]) -> str:
    """Times and memory of fits of chosen sizes."""
    rows = []
    for point in result["points"]:
        if point["method"] in ("ours", "ours, one Gaussian") and point["value"] in SIZES.get(point["axis"], ()):
            size = {**result["axes"][point["axis"]], point["axis"]: point["value"]}
            density = f"{size['components']} components" if point["method"] == "ours" else "one Gaussian"
            times = [_seconds(point["fit_seconds"]), _seconds(point["score_seconds"]), f"{point['fit_mb']:,.0f} MB"]
            rows.append([f"{size['rows']:,}", f"{size['dim']:,}", f"{size['classes']:,}", density, *times])
    head = ["inputs", "dimensions", "classes", "per class", "fit", "score all inputs", "memory of the fit"]
    made = f"`{result['command']}`, {result['date'][:10]}, {result['machine']['cpu']}, one thread"
    return f"{table(head, rows)}\n\n{made}, {_versions(result['machine'])}"


def _device(result: dict[str, Any], before: dict[str, Any]) -> str:
    """Times and memory on a GPU, without floors and profiles."""
    found = {entry["name"]: entry for entry in result["entries"] if "seconds" in entry}
    rows = []
    for name, what in ON_A_GPU.items():
        if name in found:
            entry = found[name]
            size = f"{entry.get('scored', entry['rows']):,} × {entry['dim']:,}"
            rows.append([what, size, _seconds(entry["seconds"]), f"{entry['peak_gb']:.1f} GB"])
    head = ["", "inputs × dimensions", "time", "peak memory"]
    machine = result["machine"]
    made = f"`{result['command']}`, {result['date'][:10]}, {machine['device']}, {_versions(machine)}"
    return f"{table(head, rows)}\n\n{made}"


def _scale(result: dict[str, Any], before: dict[str, Any]) -> str:
    """Times and memory of fits in a stream, and on how many processes."""
    rows = [
        [row["name"], f"{row['rows']:,}", str(row["processes"]), _seconds(row["seconds"]), f"{row['peak_mb']:,.0f} MB"]
        for row in sorted(result["rows"], key=lambda row: (row["name"], row["processes"], row["rows"]))
    ]
    head = ["", "rows", "processes", "time", "memory of a process"]
    made = (
        f"`{result['command']}`, {result['date'][:10]}, {result['machine']['cpu']}, {result['machine']['cores']} cores"
    )
    made += f", {result['dim']} dimensions, {_versions(result['machine'])}"
    if "gpu" in result:
        gpu = result["gpu"]
        made += (
            f"\n\nOn a GPU: `{result['command']} --gpu`, {gpu['date'][:10]}, {gpu['device']}, "
            f"{_versions(gpu['machine'])}; memory is the GPU's, beyond the batch that the loader drew"
        )
    return f"{table(head, rows)}\n\n{made}"


def _versions(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine["versions"].items())


def _gpu(result: dict[str, Any], before: dict[str, list[float]]) -> str:
    """Times beside their floors, what holds the rest, and what is beside ours."""
    measured = [entry for entry in result["entries"] if "seconds" in entry]
    rows, beside = [], []
    for entry in measured:
        held = sorted(entry["holds"].items(), key=lambda item: -item[1])
        rows.append(
            [
                f"`{entry['name']}`",
                _rounds(entry["seconds_rounds"]),
                _seconds(before[entry["name"]][0]) if entry["name"] in before else "",
                f"{_seconds(entry['floor_seconds'])}, {entry['floor_set_by']}",
                f"{entry['share_of_floor']:.0%}",
                f"{entry['peak_gb']:.1f} GB" if "peak_gb" in entry else "",
                ", ".join(f"{name} {share:.0%}" for name, share in held[:4] if share >= 0.01),
            ]
        )
        for peer, found in entry.get("beside", {}).items():
            text = found.get("note")
            if text is None:
                text = f"{_seconds(found['seconds'])}, {found['seconds'] / entry['seconds']:.1f} × ours"
                if "captured" in found:
                    text += f"; it captured {found['captured']:.4f} of the variance, ours {entry['captured']:.4f}"
            beside.append(f"- `{entry['name']}`, {peer}: {text}")
    ceilings, machine = result["ceilings"], result["machine"]
    rates = (
        f"Measured first: {ceilings['float32_gflops'] / 1e3:.1f} TFLOP/s in float32 and "
        f"{ceilings['float64_gflops'] / 1e3:.1f} in float64 for a square product, "
        f"{ceilings['bandwidth_gbs']:,.0f} GB/s for a copy."
    )
    notes = [f"- `{entry['name']}`: {entry['note']}" for entry in result["entries"] if "note" in entry]
    notes += [f"- {note}" for note in result["notes"]]
    head = ["", "time (rounds)", "run before", "floor, set by", "reached", "peak memory", "where the time goes"]
    made = f"`{result['command']}`, {result['date'][:10]}, {machine['device']}, {_versions(machine)}"
    parts = [rates, table(head, rows), "\n".join(beside + notes), f"{made}, {result['seconds']:.0f} s in all"]
    return "\n\n".join(part for part in parts if part)


def _training(result: dict[str, Any], before: dict[str, Any]) -> str:
    """Whole trainings, then what a step takes with fused norms and with torch's own."""
    rows = [
        [
            name,
            f"{found['networks']}",
            f"{found['seconds']:.0f} s",
            f"{min(found['epochs'])} to {max(found['epochs'])}",
            f"{1e3 * found['seconds'] / found['steps']:.3f} ms",
            f"{found['tflops'] / result['peak_tflops']:.1%}",
            f"{found['accuracy']['mean']:.3f} ± {found['accuracy']['std']:.3f}",
        ]
        for name, found in result["sets"].items()
    ]
    head = ["", "networks", "time", "epochs", "per step and network", "of the peak", "test accuracy"]
    times = [[key, _rounds([1e-3 * value for value in values])] for key, values in result["steps"].items()]
    rate = f"{result['gflop_a_step']:.1f} GFLOP per step; the peak is {result['peak_tflops']:.0f} TFLOP/s in bfloat16."
    made = (
        f"`{result['command']}`, {result['date'][:10]}, {result['machine']['device']}, {_versions(result['machine'])}"
    )
    return "\n\n".join(
        [table(head, rows), table(["norms, networks at once", "per step and network"], times), rate, made]
    )


def _growth(result: dict[str, Any], before: dict[str, Any]) -> str:
    """The figure, the exponents, and what was left out."""
    found = {(e["axis"], e["method"], e["quantity"]): e["exponent"] for e in result["exponents"]}
    quantities = {"fit_seconds": "fit", "score_seconds": "score", "fit_mb": "memory"}
    rows = []
    for axis, method in dict.fromkeys((e["axis"], e["method"]) for e in result["exponents"]):
        own = [p for p in result["points"] if (p["axis"], p["method"]) == (axis, method)]
        cells = [f"{found[axis, method, q]:.2f}" if (axis, method, q) in found else "" for q in quantities]
        last = own[-1]
        times = [_seconds(last["fit_seconds"]), _seconds(last["score_seconds"]), f"{last['fit_mb']:,.0f} MB"]
        rows.append([SUFFIX[axis], method, *cells, f"{last['value']:,}", *times])
    notes = [
        f"- {note['method']}{' with more ' + SUFFIX[note['axis']] if 'axis' in note else ''}: {note['note']}"
        for note in result["notes"]
    ]
    head = ["grows with", "method", *(f"{name} ∝" for name in quantities.values()), "at", "fit", "score", "memory"]
    made = f"`{result['command']}`, {result['date'][:10]}, {result['machine']['cpu']}, {_versions(result['machine'])}"
    picture = "![Time and memory against rows, dimensions, classes and components](../docs/images/growth.png)"
    state = [] if result["complete"] else ["This run was stopped: some points are missing."]
    parts = [picture, table(head, rows), "\n".join(notes), *state, f"{made}, {result['seconds']:.0f} s in all"]
    return "\n\n".join(part for part in parts if part)


def _busy(entries: list[dict[str, Any]], before: dict[str, Any]) -> str:
    """A fit on quiet and on busy cores."""
    words = {"library": "as it is", "alone": "without the library's check"}
    rows = []
    for entry in entries:
        taken = f"more than {entry['limit']} s" if entry["seconds"] is None else _seconds(entry["seconds"])
        how = words.get(entry["how"], f"`{entry['how']}`")
        rows.append([str(entry["threads"]), "busy" if entry["busy"] else "quiet", how, taken])
    machine, first = entries[0]["machine"], entries[0]
    made = f"`python -m bench.busy`, {first['date'][:10]}, {machine['cpu']}, {machine['cores']} cores"
    head = ["threads", "cores", "", f"fit of {first['rows']:,} × 64"]
    return f"{table(head, rows)}\n\n{made}, {_versions(machine)}"


def _alarms(result: dict[str, Any], before: dict[str, Any]) -> str:
    """How many streams without drift raise an alarm, per way and rate."""
    found = {(row["method"], row["rate"]): row for row in result["false_alarms"]}
    rates = sorted({rate for _, rate in found})
    rows = []
    for method in dict.fromkeys(method for method, _ in found):
        own = [found[method, rate] for rate in rates]
        cells = [
            f"{row['alarms'] / result['streams']:.2%} ({row['range'][0]:.2%} to {row['range'][1]:.2%})" for row in own
        ]
        rows.append([method, *cells])
    return f"{table(['', *(f'at most {rate:.0%}' for rate in rates)], rows)}\n\n{_simulated(result)}"


def _delays(result: dict[str, Any], before: dict[str, Any]) -> str:
    """After how many inputs drift is seen, per kind of drift and way."""
    kinds = {"share": "{:.0%} of inputs are unfamiliar", "mean": "all scores are {:g} σ higher"}
    parts = []
    for quiet in dict.fromkeys(row["quiet"] for row in result["delays"]):
        lines: dict[str, dict[str, str]] = {}
        for row in [row for row in result["delays"] if row["quiet"] == quiet]:
            size = "" if row["calibration"] == result["calibration"] else f", {row['calibration']:,} calibration scores"
            ends = [f"{row[key]:,.0f}" if row[key] is not None else "–" for key in ("median", "most")]
            cells = lines.setdefault(kinds[row["kind"]].format(row["size"]), {})
            cells[row["method"] + size] = f"{ends[0]} ({ends[1]})"
        ways = list(next(iter(lines.values())))
        when = f"after {quiet:,} quiet inputs" if quiet else "from the start"
        parts.append(table([when, *ways], [[name, *(cells[way] for way in ways)] for name, cells in lines.items()]))
    return "\n\n".join([*parts, _simulated(result)])


def _simulated(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return f"`{result['command']}`, {result['date'][:10]}, {result['seconds'] / 60:.0f} minutes, {_versions(machine)}"


def _export(result: dict[str, Any], before: dict[str, Any]) -> str:
    """What the graph takes beside the bare network in the same runtime."""
    rows = []
    for entry in result["entries"]:
        times = [f"{_seconds(entry[f'{side}_p50'])} ({_seconds(entry[f'{side}_p99'])})" for side in ("bare", "graph")]
        spread = "{:+.1f} to {:+.1f}".format(*entry["quartiles"])
        extra = f"{entry['extra_percent']:+.1f} % ({spread})"
        rows.append([entry["runtime"], str(entry["batch"]), str(entry["threads"]), *times, extra, str(entry["rounds"])])
    head = ["runtime", "images", "threads", "network alone: p50 (p99)", "with uncertainty: p50 (p99)"]
    one = next(entry for entry in result["entries"] if entry["batch"] == 1)
    floor = (
        f"The products with the densities' factors alone take {_seconds(result['products_seconds'])} for one image in "
        f"onnxruntime, {result['products_seconds'] / one['bare_p50']:.1%} of the network: each number of these is "
        "read once from memory and used once, whereas a convolution uses its weights at every place of the image."
    )
    cpu = "{cpu}, {cores} cores".format(**result["machine"])
    made = f"`{result['command']}`, {result['date'][:10]}, {cpu}, {_versions(result['machine'])}"
    return f"{table([*head, 'extra (quartiles)', 'rounds'], rows)}\n\n{floor}\n\n{made}"


def _serve(result: dict[str, Any], before: dict[str, Any]) -> str:
    """Rates, times and memory of the example's service under load, and what was refused."""
    rows, refused = [], []
    for entry in result["entries"]:
        rates = [f"{entry['requests_per_second']:,.0f}", f"{entry['inputs_per_second']:,.0f}"]
        plain = [f"{entry[f'plain_{how}_per_second']:,.0f} ({entry[f'ratio_{how}']:.2f} ×)" for how in ("one", "batch")]
        times = [f"{entry['inputs_per_run']:.1f}", f"{_seconds(entry['p50'])} ({_seconds(entry['p99'])})"]
        memory = " → ".join(f"{entry[f'{when}_mb']:,.0f}" for when in ("first", "middle", "last"))
        faults = [f"{entry['requests']:,}", str(entry["lost"]), str(entry["wrong"])]
        rows.append([entry["model"], *rates, *plain, *times, *faults, f"{memory} MB"])
        kinds = ", ".join(f"{count:,} {what}" for what, count in entry["refused"].items())
        minutes = f"{entry['seconds'] / 60:.1f} minutes"
        busy = "load average {:.0f} to {:.0f}".format(*(f(entry["load_average"]) for f in (min, max)))
        refused.append(f"- {entry['model']}: {minutes}, {busy}; refused in between: {kinds}")
    head = [
        "",
        "requests/s",
        "inputs/s",
        "onnxruntime alone, one at a time",
        "alone, as many at a time",
        "inputs per run",
    ]
    head += ["p50 (p99)", "requests", "lost", "wrong", "memory at start, middle, end"]
    one = result["entries"][0]
    cpu = "{cpu}, {cores} cores".format(**result["machine"])
    made = f"`{result['command']}`, {result['date'][:10]}, {cpu}, {one['threads']} thread for the network"
    return "\n\n".join([table(head, rows), "\n".join(refused), f"{made}, {_versions(result['machine'])}"])


def _answer(result: dict[str, Any], before: dict[str, Any]) -> str:
    """What the service says of one input."""
    return f"```\n$ curl 127.0.0.1:8000/score --data-binary @image.npy\n{result['entries'][0]['answer']}\n```"


SECTIONS: dict[str, tuple[str, str, str, Callable[[Any, Any], str]]] = {
    "cpu": ("latest.json", "history.jsonl", "make bench", _cpu),
    "gpu": ("gpu.json", "gpu-history.jsonl", "make bench-gpu", _gpu),
    "training": ("training.json", "training-history.jsonl", "python -m bench.training", _training),
    "growth": ("growth.json", "growth-history.jsonl", "make bench-growth", _growth),
    "busy": ("busy.json", "busy-history.jsonl", "python -m bench.busy", _busy),
    "export": ("export.json", "export-history.jsonl", "python -m bench.export", _export),
    "serve": ("serve.json", "serve-history.jsonl", "python -m bench.serve", _serve),
    "answer": ("serve.json", "serve-history.jsonl", "python -m bench.serve", _answer),
    "call": ("latest.json", "history.jsonl", "make bench", _call),
    "default": ("default.json", "default-history.jsonl", "python -m bench.default", _default),
    "memory": ("latest.json", "history.jsonl", "make bench", _memory),
    "fit": ("growth.json", "growth-history.jsonl", "make bench-growth", _fit),
    "device": ("gpu.json", "gpu-history.jsonl", "make bench-gpu", _device),
    "alarms": ("monitor.json", "monitor-history.jsonl", "python -m bench.monitor", _alarms),  # nor have these two
    "delays": ("monitor.json", "monitor-history.jsonl", "python -m bench.monitor", _delays),
    "scale": ("scale.json", "scale-history.jsonl", "python -m bench.scale", _scale),  # no history either
}


def main() -> None:
    """Fill the pages of this working tree."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = fill(before, HERE)
        if after != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
