"""`python -m bench.busy`: a fit on quiet cores and on cores that other processes keep busy → busy.json.

Each fit runs in a process of its own. *Busy* means one endless loop per core beside it. *Left alone* means without what
the library does about it (`hidden_uncertainty.precision`); such a fit is stopped after two minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from .record import machine, now, write

HERE = Path(__file__).resolve().parent
LIMIT = 120  # seconds
FIT = """
import math, sys, time, torch
from hidden_uncertainty import GaussianMixture, precision
count, rows, alone = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "alone"
if alone:
    precision.LONGEST, precision.LEAST = math.inf, 0.0
torch.set_num_threads(count)
random = torch.Generator().manual_seed(0)
y = torch.arange(rows) % 10
z = torch.randn(rows, 64, generator=random) @ torch.randn(64, 64, generator=random)
z += 20 * torch.randn(10, 64, generator=random)[y]
start = time.perf_counter()
GaussianMixture(5, max_iter=20, tol=0.0).fit(z, y)
print(time.perf_counter() - start)
"""
CASES = [  # threads, busy, what is done about it
    (1, False, "library"),
    (2, False, "library"),
    (1, True, "library"),
    (2, True, "library"),
    (2, True, "OMP_WAIT_POLICY=passive"),
    (2, True, "alone"),
]


@contextmanager
def busy(cores: int) -> Any:
    """Keep cores busy for the length of a block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds(threads: int, rows: int, how: str) -> float | None:
    """Of one fit; None where it took longer than the limit."""
    # Ten steps each may end without convergence, which is no matter here.
    command = [sys.executable, "-W", "ignore", "-c", FIT, str(threads), str(rows), "alone" if "OMP" in how else how]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP")}
    if "OMP" in how:
        environment |= dict([how.split("=")])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=True)
    except subprocess.TimeoutExpired:
        return None
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "busy.json")
    asked = parser.parse_args()
    cores = machine()["cores"]
    entries = []
    for threads, loaded, how in CASES:
        with busy(cores if loaded else 0):
            found = [seconds(threads, asked.rows, how) for _ in range(1 if how == "alone" else asked.rounds)]
        known = [value for value in found if value is not None]
        taken = round(median(known), 3) if len(known) == len(found) else None
        entries.append({"threads": threads, "busy": loaded, "how": how, "rows": asked.rows, "seconds": taken})
        entries[-1] |= {"limit": LIMIT, "date": now(), "machine": machine()}
        print({name: entries[-1][name] for name in ("threads", "busy", "how", "seconds")}, flush=True)
    write(entries, asked.out)


if __name__ == "__main__":
    main()
