"""Run the Python of a page; `python tests/pages.py PAGE ...` writes what it prints, and draws, into the page.

A block of `text` right after a block of `python` is what that block prints. In `text about`, numbers may be a little
different: those of a trained network are, from one machine to another.

Pictures that a page shows as `images/PAGE-NAME.png` are those that its code saves as `PAGE-NAME.png`.

Packages that a page is about and the tests do not need come from `stand_ins`: small ones with the same interface.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[1]
STAND_INS = Path(__file__).parent / "stand_ins"
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?")


class Example(NamedTuple):
    """A block of Python, the line it starts on, what it prints and where the page says so."""

    code: str
    line: int
    prints: str = ""
    about: bool = False
    place: slice | None = None


def examples(text: str) -> list[Example]:
    """The blocks of Python on a page, in order."""
    found: list[Example] = []
    end = -1
    for fence in FENCE.finditer(text):
        language, flag, body = fence.groups()
        line = text[: fence.start()].count("\n") + 1
        if language == "python":
            found.append(Example(body, line))
            end = fence.end()
        elif language == "text":
            if not found or text[end : fence.start()].strip():
                raise ValueError(f"line {line}: no block of Python prints this text.")
            place = slice(fence.start(3), fence.end(3))
            found[-1] = found[-1]._replace(prints=body, about=flag.strip() == "about", place=place)
    return found


def pictures(page: Path) -> list[Path]:
    """The pictures of a page that its own code draws: they begin with the name of the page."""
    shown = re.findall(r"\]\((images/[^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [page.parent / path for path in shown if Path(path).name.startswith(f"{page.stem}-")]


def run(page: Path) -> Iterator[tuple[Example, str]]:
    """Run the blocks of a page one after the other in one namespace; each with what it printed."""
    names: dict[str, object] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order train another network
    try:
        with torch.random.fork_rng(devices=[]), stand_ins():
            for example in examples(page.read_text(encoding="utf-8")):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    # Empty lines before it make a traceback name the line of the page.
                    exec(compile("\n" * example.line + example.code, str(page), "exec"), names)
                yield example, printed.getvalue()
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Have a page import the stand-ins, also where the packages themselves are installed."""
    names = [path.stem for path in STAND_INS.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(STAND_INS))
    try:
        yield
    finally:
        sys.path.remove(str(STAND_INS))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def same(found: str, shown: str, *, about: bool = False) -> bool:
    """Whether what was printed is what the page shows; `about`: numbers within 0.1 or a quarter, 25 % being 0.25."""
    if found.rstrip() == shown.rstrip():
        return True
    if not about or NUMBER.sub("#", found).split() != NUMBER.sub("#", shown).split():
        return False
    pairs = zip(NUMBER.findall(found), NUMBER.findall(shown), strict=True)
    return all(abs(_value(a) - _value(b)) <= max(0.1, 0.25 * abs(_value(b))) for a, b in pairs)


def _value(number: str) -> float:
    plain = float(number.rstrip("%").replace(",", ""))
    return plain / 100 if number.endswith("%") else plain


def write(page: Path) -> None:
    """Replace what a page shows by what its code prints, where that differs."""
    text = page.read_text(encoding="utf-8")
    for example, found in reversed(list(run(page))):
        if example.place is not None and not same(found, example.prints, about=example.about):
            text = text[: example.place.start] + found + text[example.place.stop :]
    page.write_text(text, encoding="utf-8")
    for picture in pictures(page):
        shutil.copyfile(picture.name, picture)


if __name__ == "__main__":
    warnings.simplefilter("error")
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in pages:
            write(page)
