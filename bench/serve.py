"""`python -m bench.serve`: load on examples/serve, for a small network and for a ResNet18: rate, times, memory, faults.

Server and clients share this machine, so the rates are lower than with clients elsewhere. Each network is loaded for
`--seconds`. Rates of onnxruntime alone are measured in the same run, in one thread as in the server.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hidden_uncertainty import LatentDensity, export
from hidden_uncertainty.demo import DigitsNet, digits, train

from .export import detector_of
from .record import machine, now

HERE = Path(__file__).resolve().parent


def load_test() -> Any:
    """The module examples/serve/load.py."""
    spec: Any = importlib.util.spec_from_file_location("load", HERE.parent / "examples" / "serve" / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def models(folder: Path) -> dict[str, np.ndarray]:
    """Two files in a folder, with inputs for each."""
    data = digits()
    network = train(DigitsNet(), data.train.images, data.train.labels, epochs=10)
    detector = LatentDensity(network, progress=False).fit(data.train.batches(), calibration=data.calibration.batches())
    detector.threshold(0.05)
    export(detector, data.test.images[:2], folder / "digits.onnx")
    large, images = detector_of(64, 2400)
    export(large, images[:2], folder / "resnet18.onnx")
    return {"digits": data.test.images[:64].numpy(), "resnet18": images[-64:].numpy()}


def main() -> None:
    """Write bench/serve.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="per network")
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    load, entries = load_test(), []
    with tempfile.TemporaryDirectory() as name:
        for model, inputs in models(Path(name)).items():
            entries.append(load.measure(Path(name) / f"{model}.onnx", inputs, given.seconds, given.clients))
            print(json.dumps({key: entries[-1][key] for key in ("model", "requests", "lost", "wrong", "p50", "p99")}))
    command = f"python -m bench.serve --seconds={given.seconds:g} --clients={given.clients}"
    found = {"command": command, "date": now(), "machine": machine(), "entries": entries}
    (HERE / "serve.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
