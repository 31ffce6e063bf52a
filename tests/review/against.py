"""Whether each test of this folder fails in version 0.1.0 by its assertion: python tests/review/against.py CHECKOUT."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).parent


def main(checkout: str, *names: str) -> int:
    """Run the tests with the source of a checkout of version 0.1.0; 0 if every one of them fails by its assertion."""
    files = [str(HERE / name) for name in names] or [str(path) for path in sorted(HERE.glob("test_*.py"))]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        path = os.pathsep.join([str(Path(checkout) / "src"), str(HERE), str(HERE.parent)])
        command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--rootdir", str(HERE), "--import-mode=importlib", f"--junitxml={report}", *files]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    wrong = 0
    for case in cases:
        failure = case.find("failure")
        text = "passed or could not run" if failure is None else (failure.get("message") or "").splitlines()[0]
        as_wanted = text.startswith(("AssertionError", "assert ", "Failed: DID NOT"))
        wrong += not as_wanted
        print(f"{'fails ' if as_wanted else 'WRONG '} {case.get('name')}: {text[:100]}")
    print(f"{len(cases) - wrong} of {len(cases)} tests fail in 0.1.0 by their assertion")
    return int(wrong > 0 or not cases)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
