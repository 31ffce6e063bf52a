"""What a version must pass before it is published: `make release` runs every check and lists what is missing.

Nothing is published, and nothing is written but `dist/`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
from pages import examples, same  # noqa: E402

LINES, FILES = 19_000, 110
PYTHONS = ("3.11", "3.12", "3.13")
VERSION = ROOT / "src/hidden_uncertainty/version.py"
CONSTRAINTS = ROOT / "constraints.txt"


def main() -> int:
    """Run the checks; the number of what is missing."""
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for check in (version, papers, tree, lambda: builds(Path(folder)), size, contents, metadata):
            missing += _told(check())
        for python in PYTHONS:
            missing += _told(installs(python, Path(folder) / python))
    print(f"\nmissing: {len(missing)}" if missing else "\nnothing is missing.")
    for line in missing:
        print(f"  - {line}")
    return min(len(missing), 1)


def version() -> Iterator[tuple[bool, str]]:
    """The version is in one place, is no development version, and has its section in the changelog."""
    (found,) = re.findall(r'^__version__ = "(.+)"$', VERSION.read_text(encoding="utf-8"), re.MULTILINE)
    release = re.sub(r"\.dev\d+$", "", found)
    yield found == release, f"version {found}" + ("" if found == release else f": write {release} into {VERSION.name}")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## {re.escape(release)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE)
    yield bool(dated), f"CHANGELOG.md has a section '## {release} (YYYY-MM-DD)'"
    rest = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    yield not (rest and rest[1].strip()), "CHANGELOG.md has nothing left under Unreleased"


def papers() -> Iterator[tuple[bool, str]]:
    """What a reader of the repository looks for is there, and can be read."""
    for name in ("LICENSE", "README.md", "CONTRIBUTING.md", "SECURITY.md"):
        yield (ROOT / name).is_file(), f"{name} is there"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    needed = {"cff-version", "message", "title", "authors"}
    yield needed <= set(citation), f"CITATION.cff has {', '.join(sorted(needed))}"


def tree() -> Iterator[tuple[bool, str]]:
    """What is built is what was committed."""
    yield not _run("git", "status", "--porcelain").strip(), "every change is committed"


def builds(folder: Path) -> Iterator[tuple[bool, str]]:
    """Two builds, one of them from a copy at another place with other times and permissions, give the same bytes."""
    copy = folder / "copy"
    for name in _run("git", "ls-files").splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    environment = os.environ | {
        "SOURCE_DATE_EPOCH": _run("git", "log", "-1", "--format=%ct").strip(),
        "PIP_CONSTRAINT": str(CONSTRAINTS),
    }
    digests = []
    for source, to, mask in ((ROOT, ROOT / "dist", 0o022), (copy, folder / "dist", 0o077)):
        print(f"   building in {source}", flush=True)
        _run(sys.executable, "-m", "build", "--outdir", str(to), str(source), env=environment, umask=mask)
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(to.iterdir())})
    for name, digest in digests[0].items():
        yield digests[1].get(name) == digest, f"{name} builds reproducibly, sha256 {digest[:16]}…"
    yield len(digests[0]) == 2, f"a wheel and an sdist: {', '.join(digests[0])}"


def size() -> Iterator[tuple[bool, str]]:
    """The wheel is small enough to be read."""
    with zipfile.ZipFile(_wheel()) as wheel:
        sources = [name for name in wheel.namelist() if name.endswith(".py")]
        lines = sum(wheel.read(name).count(b"\n") for name in sources)
    yield lines <= LINES, f"{lines:,} lines in the wheel, at most {LINES:,}"
    yield len(sources) <= FILES, f"{len(sources)} files of Python in the wheel, at most {FILES}"


def contents() -> Iterator[tuple[bool, str]]:
    """The wheel holds the library and nothing else; the sdist no data."""
    with zipfile.ZipFile(_wheel()) as wheel:
        names = wheel.namelist()
    strangers = [name for name in names if not re.match(r"hidden_uncertainty(-[^/]+\.dist-info)?/", name)]
    strangers += [name for name in names if re.search(r"(^|/)(tests?|reproduction|bench)/", name)]
    yield not strangers, "the wheel holds the library alone" + (f", but also {strangers[:3]}" if strangers else "")
    yield "hidden_uncertainty/py.typed" in names, "the wheel says that it has types"
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        large = [member.name for member in archive if member.size > 500_000]
    yield not large, "the sdist has no large files" + (f", but {large}" if large else "")


def metadata() -> Iterator[tuple[bool, str]]:
    """An index would take both files."""
    files = [str(path) for path in sorted((ROOT / "dist").iterdir())]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    yield done.returncode == 0, "twine check" + ("" if done.returncode == 0 else f": {done.stdout[-500:]}")


def installs(python: str, folder: Path) -> Iterator[tuple[bool, str]]:
    """The wheel installs into an empty environment, where the command and the README's first lines run."""
    print(f"   installing into an empty environment of Python {python}", flush=True)
    found = shutil.which(f"python{python}")  # pyenv has one that does not run, unless PYENV_VERSION names it
    if found is None or subprocess.run([found, "-m", "venv", str(folder)], capture_output=True).returncode:
        yield False, f"Python {python}: python{python} does not run on this machine, so nothing was checked"
        return
    own = str(folder / "bin/python")
    _run(own, "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), str(_wheel()))
    shown = _run(str(folder / "bin/hidden-uncertainty"), "--help", cwd=folder)
    yield "Usage" in shown, f"Python {python}: hidden-uncertainty --help"
    first = examples((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    printed = _run(own, "-c", first.code, cwd=folder)
    right = same(printed, first.prints, about=first.about)
    yield right, f"Python {python}: the first lines of the README" + ("" if right else f", but they print\n{printed}")
    shutil.rmtree(folder)


def _told(found: Iterator[tuple[bool, str]]) -> list[str]:
    missing = []
    for good, line in found:
        print(("ok " if good else "-- ") + line.rstrip(), flush=True)
        missing += [] if good else [line]
    return missing


def _wheel() -> Path:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def _run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None, umask: int = -1) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, umask=umask, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
