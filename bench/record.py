"""What is written of a run."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch

Entry = dict[str, Any]


def machine() -> dict[str, Any]:
    """Where and with what the numbers were made."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{package.__name__: package.__version__ for package in (torch, sklearn, np, scipy)},
        },
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def now() -> str:
    """The date and time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write(entries: list[Entry], path: Path) -> None:
    """Write all entries, or leave the file as it was."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(entries, indent=1) + "\n")
    os.replace(partial, path)


def append(entries: list[Entry], path: Path) -> None:
    """Add one line for the run: its date, its machine, and the number of each entry."""
    numbers = {f"{e['name']}/{e['threads']}": round(e["ratio" if "ratio" in e else "value"], 3) for e in entries}
    line = {"date": entries[0]["date"], "machine": entries[0]["machine"], "numbers": numbers}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
