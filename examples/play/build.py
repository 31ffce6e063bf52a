"""Build the page in which one draws digits: train, fit, export, and put everything that it needs into one folder.

python examples/play/build.py --out FOLDER     # a folder for any static web server
python examples/play/build.py --serve          # the same, into examples/play/site, and serve it on this machine
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import tempfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hidden_uncertainty import LatentDensity, export
from hidden_uncertainty.demo import DigitsNet, digits, train

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
PAGE = ("index.html", "play.css", "play.js")
RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")  # of onnxruntime-web: all that one thread needs
FALSE_ALARM = 0.05


def main() -> None:
    """Build, and serve if asked to."""
    parser = argparse.ArgumentParser(description="Build the page in which one draws digits.")
    parser.add_argument("--out", type=Path, default=SITE, help="folder to build into (%(default)s)")
    parser.add_argument("--serve", action="store_true", help="serve it afterwards, to this machine alone")
    parser.add_argument("--port", type=int, default=8000, help="to serve at (%(default)s); 0 takes any that is free")
    options = parser.parse_args()
    build(options.out)
    if options.serve:
        serve(options.out, options.port)


def build(out: Path) -> None:
    """Write the page into a folder, which is left as it was if anything fails."""
    runtime = install()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        made = Path(folder)
        (made / "ort").mkdir()
        for name in PAGE:
            shutil.copy(HERE / name, made / name)
        for name in RUNTIME:
            shutil.copy(runtime / name, made / "ort" / name)
        write_detector(made)
        (out / "ort").mkdir(parents=True, exist_ok=True)
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            os.replace(path, out / path.relative_to(made))
    print(f"Built {out}.")


def install() -> Path:
    """The files of onnxruntime-web, of the version in package-lock.json; npm fetches them if they are not there."""
    package = HERE / "node_modules" / "onnxruntime-web"
    wanted = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]["onnxruntime-web"]
    found = package / "package.json"
    if found.exists() and json.loads(found.read_text(encoding="utf-8"))["version"] == wanted:
        return package / "dist"
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(
            f"npm is not installed. The page needs it once, to fetch onnxruntime-web {wanted}. "
            "Install Node.js 18 or later (https://nodejs.org), then run this again."
        )
    print(f"Fetching onnxruntime-web {wanted} with npm.", flush=True)
    done = subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE)
    if done.returncode:
        raise SystemExit(f"npm could not fetch onnxruntime-web {wanted}: what it said is above. Is there a network?")
    return package / "dist"


def write_detector(folder: Path) -> None:
    """Train the network, fit its detector, and write both as one graph, with what the page says of them."""
    data = digits(calibration=0.25, test=0.05)
    print("Training, fitting and exporting: about half a minute.", flush=True)
    model = train(DigitsNet(), data.train.images, data.train.labels, epochs=60)
    detector = LatentDensity(model).fit(data.train.batches(), calibration=data.calibration.batches())
    threshold = detector.threshold(false_alarm=FALSE_ALARM)
    export(detector, data.test.images[:2], folder / "detector.onnx")
    u = detector(data.test.images)
    assert u.surprising is not None
    about = {
        "train": len(data.train),
        "test": len(data.test),
        "accuracy": (u.prediction == data.test.labels).double().mean().item(),
        "alarms": u.surprising.double().mean().item(),
        "false_alarm": FALSE_ALARM,
        "threshold": float(threshold),
    }
    (folder / "detector.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def serve(folder: Path, port: int) -> None:
    """Serve a folder to this machine until Ctrl-C."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise SystemExit(f"port {port} is not free ({error.strerror}): choose another with --port.") from error
    with server:
        print(f"Open http://localhost:{server.server_port} (Ctrl-C ends it).", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
