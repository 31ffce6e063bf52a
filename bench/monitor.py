"""`python -m bench.monitor`: how often a monitor alarms without drift, and how soon with it, beside other ways.

Scores are normal, calibration sets are drawn anew for every stream. Unfamiliar inputs score 2.5 deviations higher, as
those of a detector with an AUROC of 0.96 do. About five minutes on one core.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import binomtest, ks_2samp

from hidden_uncertainty import Monitor

from . import record

HERE = Path(__file__).resolve().parent
RATES = (0.01, 0.05)
FULL = {"streams": 2000, "inputs": 20_000, "delay_streams": 300, "quiet": 5000, "longest": 10_000}
QUICK = {"streams": 6, "inputs": 1000, "delay_streams": 4, "quiet": 500, "longest": 500}
SHIFTS = [*({"kind": "share", "size": size} for size in (0.01, 0.05, 0.2, 1.0))]
SHIFTS += [*({"kind": "mean", "size": size} for size in (0.25, 0.5, 1.0))]
BATCH = 100  # inputs per Kolmogorov-Smirnov test
HIGHER = [0, 2, 4, 6, 9, 11, 13, 15]  # bets on higher and on wider scores
Watch = Callable[[np.ndarray, np.ndarray, float, int], int | None]


def _monitored(monitor: Monitor, stream: np.ndarray) -> int | None:
    for part in torch.from_numpy(stream).split(1000):
        if monitor.update(part):
            break
    return monitor.alarm


def ours(calibration: np.ndarray, stream: np.ndarray, rate: float, tests: int) -> int | None:
    return _monitored(Monitor(calibration, rate), stream)


def higher(calibration: np.ndarray, stream: np.ndarray, rate: float, tests: int) -> int | None:
    """The same without bets on lower scores."""
    monitor = Monitor(calibration, rate)
    monitor._bets = monitor._bets[HIGHER]
    monitor._worth, monitor._best, monitor._start = (
        some[: 2 * len(HIGHER)] for some in (monitor._worth, monitor._best, monitor._start)
    )
    return _monitored(monitor, stream)


def fixed(calibration: np.ndarray, stream: np.ndarray, rate: float, tests: int) -> int | None:
    """The same bets on p-values against the calibration set, as if it were all there is: an urn too full to change."""
    monitor = Monitor(calibration, rate)
    monitor.sizes = monitor.sizes * 1e12
    return _monitored(monitor, stream)


def counts(calibration: np.ndarray, stream: np.ndarray, rate: float, tests: int) -> int | None:
    """Bets from the start alone, whose worth depends on nothing but the counts of all inputs."""
    monitor = Monitor(calibration, rate)
    bins = np.searchsorted(monitor.edges.numpy(), stream)
    each = np.eye(len(monitor.sizes))[bins]
    before = np.take_along_axis(each.cumsum(0) - each, bins[:, None], 1)  # (n, 1) inputs in the same bin
    sizes, bets = monitor.sizes.numpy()[bins, None], monitor._bets.numpy().T[bins]  # (n, 1) (n, J)
    worth = np.log((sizes * bets + before) / (sizes + before)).cumsum(0)
    return _first(logsumexp(worth, 1) - math.log(worth.shape[1]) >= -math.log(rate), 1)


def batches(calibration: np.ndarray, stream: np.ndarray, rate: float, tests: int) -> int | None:
    """Kolmogorov-Smirnov tests of batches, Bonferroni over all tests of the longest stream."""
    known = np.sort(calibration)
    windows = np.sort(stream[: len(stream) // BATCH * BATCH].reshape(-1, BATCH), 1)
    below = np.searchsorted(known, windows) / len(known)  # (tests, BATCH)
    steps = np.arange(BATCH + 1) / BATCH
    distance = np.maximum(steps[1:] - below, below - steps[:-1]).max(1)
    return _first(distance >= _critical(len(known), rate / tests) - 1e-9, BATCH)


METHODS: dict[str, Watch] = {
    "`Monitor`": ours,
    "bets on higher scores only": higher,
    "fixed p-values": fixed,
    "counts alone": counts,
    "Kolmogorov-Smirnov": batches,
}


def _first(alarms: np.ndarray, inputs: int) -> int | None:
    return (int(alarms.argmax()) + 1) * inputs if alarms.any() else None


_known: dict[tuple[int, float], float] = {}


def _critical(samples: int, rate: float) -> float:
    """The least distance of a batch from so many calibration scores whose exact p-value is at most a rate."""

    def rare(rank: int) -> bool:
        window = np.maximum(rank, np.arange(BATCH) * samples / BATCH) + 0.5  # that far away, at its first value
        return bool(ks_2samp(np.arange(1, samples + 1), window, method="exact").pvalue <= rate)

    if (samples, rate) not in _known:
        _known[samples, rate] = bisect_left(range(samples), True, key=rare) / samples
    return _known[samples, rate]


def draw(seed: int, calibration: int, inputs: int, shift: dict[str, Any] | None, quiet: int) -> tuple[Any, Any]:
    """A calibration set and a stream that shifts after some quiet inputs."""
    random = np.random.default_rng(seed)
    scores = random.standard_normal(calibration + inputs)
    known, stream = scores[:calibration], scores[calibration:]
    if shift is not None:
        late = stream[quiet:]
        late += shift["size"] if shift["kind"] == "mean" else 2.5 * (random.random(len(late)) < shift["size"])
    return known, stream


def false_alarms(sizes: dict[str, int], calibration: int, tests: int) -> list[dict[str, Any]]:
    """How many streams without drift raise an alarm."""
    found = []
    for name, watch in METHODS.items():
        if watch is higher:  # it is there for its delays
            continue
        alarms = dict.fromkeys(RATES, 0)
        for seed in range(sizes["streams"]):
            known, stream = draw(seed, calibration, sizes["inputs"], None, 0)
            for rate in sorted(RATES, reverse=True):  # no alarm at the higher rate is none at the lower
                if watch(known, stream, rate, tests) is None:
                    break
                alarms[rate] += 1
        for rate, count in alarms.items():
            low, high = binomtest(count, sizes["streams"]).proportion_ci(0.95)
            found.append({"method": name, "rate": rate, "alarms": count, "range": [float(low), float(high)]})
            print(f"{name:30}{rate:6.0%}{count / sizes['streams']:8.2%} ({low:.2%} to {high:.2%})", flush=True)
    return found


def delays(sizes: dict[str, int], calibration: int, tests: int) -> list[dict[str, Any]]:
    """After how many inputs a shift is seen, at a rate of 1 %."""
    found = []
    ways = [(name, watch, calibration) for name, watch in METHODS.items()] + [("`Monitor`", ours, 10 * calibration)]
    for quiet in (0, sizes["quiet"]):
        for shift in SHIFTS:
            for name, watch, samples in ways:
                late: list[float] = []
                for seed in range(sizes["delay_streams"]):
                    known, stream = draw(seed, samples, quiet + sizes["longest"], shift, quiet)
                    alarm = watch(known, stream, min(RATES), tests)
                    late += [math.inf if alarm is None else alarm - quiet] * (alarm is None or alarm > quiet)
                values = [float(value) for value in np.quantile(late, (0.5, 0.9), method="higher")]
                median, most = (None if math.isinf(value) else value for value in values)
                row = {"method": name, "calibration": samples, "quiet": quiet, **shift, "median": median, "most": most}
                found.append({**row, "early": sizes["delay_streams"] - len(late), "missed": late.count(math.inf)})
                print(found[-1], flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Draw all streams and write what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.monitor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short streams, to see that it works")
    parser.add_argument("--out", type=Path, help="where to write; a whole run has a default, bench/monitor.json")
    options = parser.parse_args(arguments)
    out = options.out or (None if options.quick else HERE / "monitor.json")
    sizes, calibration, start = QUICK if options.quick else FULL, 500, time.monotonic()
    tests = sizes["inputs"] // BATCH
    logging.getLogger("hidden_uncertainty").setLevel(logging.ERROR)  # alarms are what this is about
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "command": "python -m bench.monitor" + (" --quick" if options.quick else ""),
        "date": record.now(),
        "machine": record.machine(),
        **sizes,
        "calibration": calibration,
        "false_alarms": false_alarms(sizes, calibration, tests),
        "delays": delays(sizes, calibration, tests),
    }
    result["seconds"] = time.monotonic() - start
    if out is not None:
        record.write(result, out)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
