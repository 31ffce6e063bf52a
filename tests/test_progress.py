"""Progress on a forced terminal, read back through a small terminal emulator."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader, IterableDataset

from hidden_uncertainty import progress

ESCAPE = re.compile(r"\x1b\[(\??)(\d*)(?:;\d+)*([A-Za-z])")


class Screen:
    """What a terminal shows after `text`: its lines, and whether the cursor is visible."""

    def __init__(self, text: str) -> None:
        self.lines, self.cursor = [""], True
        row, column, i = 0, 0, 0
        while i < len(text):
            if escape := ESCAPE.match(text, i):
                private, number, letter = escape.groups()
                if private:
                    self.cursor = letter == "h"
                elif letter == "A":
                    row = max(row - int(number or 1), 0)
                elif letter == "K":
                    self.lines[row] = ""
                i = escape.end()
                continue
            if text[i] == "\r":
                column = 0
            elif text[i] == "\n":
                row, column = row + 1, 0
                self.lines += [""] * (row - len(self.lines) + 1)
            else:
                line = self.lines[row].ljust(column)
                self.lines[row] = line[:column] + text[i] + line[column + 1 :]
                column += 1
            i += 1

    @property
    def text(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]


def shown(terminal: io.StringIO) -> list[str]:
    """Redraw, then read the screen."""
    assert progress._display is not None
    progress._display.refresh()
    return Screen(terminal.getvalue()).text


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert progress._display is None, "a bar was left open"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_console", Console(file=file, force_terminal=True, width=100))
    return file


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(progress, "_console", Console(file=file, width=40))
    return file


def assert_clean(terminal: io.StringIO, *expected: str) -> None:
    screen = Screen(terminal.getvalue())
    assert "\x1b[?25l" in terminal.getvalue(), "nothing was ever drawn"
    assert screen.text == list(expected)
    assert screen.cursor


def test_track_gives_the_items_and_leaves_nothing_behind(terminal: io.StringIO) -> None:
    seen = []
    for item in progress.track("abc", "reading [layer4]"):
        seen.append(item)
        (row,) = shown(terminal)
        assert row.startswith("reading [layer4] ")
        assert f"{len(seen) - 1}/3" in row
    assert seen == ["a", "b", "c"]
    assert_clean(terminal)


def test_a_bar_shows_steps_and_the_latest_information(terminal: io.StringIO) -> None:
    with progress.progress_bar("mixture", total=10) as bar:
        bar.advance(2, likelihood=-1234.5678, stage="warm")
        assert "2/10" in shown(terminal)[0]
        assert "likelihood -1235  stage warm" in shown(terminal)[0]
        bar.advance(likelihood=torch.tensor(0.25).item())
        assert "3/10" in shown(terminal)[0]
        assert "likelihood 0.25  stage warm" in shown(terminal)[0]
    assert bar.completed == 3
    bar.advance()  # late, and harmless
    assert_clean(terminal)


def test_nested_bars_are_rows_of_one_display(terminal: io.StringIO) -> None:
    for _ in progress.track(range(2), "layers"):
        for _ in progress.track(range(2), "batches"):
            with progress.progress_bar("steps", total=5) as bar:
                bar.advance()
                rows = shown(terminal)
                assert [row.split()[0] for row in rows] == ["layers", "batches", "steps"]
        assert [row.split()[0] for row in shown(terminal)] == ["layers"]
    assert_clean(terminal)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_the_loop_leaves_the_terminal_clean(terminal: io.StringIO, error: type[BaseException]) -> None:
    def fit() -> None:
        for _ in progress.track(range(3), "outer"):
            for _ in progress.track(range(3), "inner"):
                raise error

    with pytest.raises(error):
        fit()
    assert_clean(terminal)


def test_an_error_of_the_items_and_an_early_break_leave_it_clean(terminal: io.StringIO) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(progress.track(broken(), "reading"))
    assert_clean(terminal)
    for _ in progress.track(range(3), "stopping"):
        break
    gc.collect()
    assert_clean(terminal)


def test_bars_may_close_in_any_order(terminal: io.StringIO) -> None:
    first, second = progress.track(range(3), "first"), progress.track(range(3), "second")
    next(first)
    next(second)
    first.close()  # type: ignore[attr-defined]
    assert [row.split()[0] for row in shown(terminal)] == ["second"]
    second.close()  # type: ignore[attr-defined]
    assert_clean(terminal)


def test_threads_share_the_display(terminal: io.StringIO) -> None:
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def fit(name: str) -> None:
        try:
            for _ in range(10):
                together.wait(timeout=20)
                for _ in progress.track(range(5), name):
                    with progress.progress_bar("inner", total=3) as bar:
                        bar.advance(loss=1.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fit, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not failures
    assert_clean(terminal)


def test_a_forked_child_leaves_the_display_of_its_parent_alone(terminal: io.StringIO) -> None:
    """In the child, the thread that draws is gone, with the locks that it held."""
    with progress.progress_bar("here", total=2) as bar:
        display, held, free = progress._display, threading.Event(), threading.Event()
        assert display is not None

        def draw() -> None:
            with display._lock, progress._lock:
                held.set()
                assert free.wait(20)

        thread = threading.Thread(target=draw)
        thread.start()
        assert held.wait(20)
        progress._after_fork()
        bar.advance()  # which would wait for ever
        assert list(progress.track("ab", "another")) == ["a", "b"]
    free.set()
    thread.join(20)
    assert bar.completed == 1
    display.stop()


def test_length_is_asked_for_and_may_be_missing(terminal: io.StringIO) -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.zeros(4, 2)

    cases = [
        (progress.track(DataLoader(torch.zeros(6, 2), batch_size=2), "x"), "0/3"),  # type: ignore[arg-type]
        (progress.track(DataLoader(Stream(), batch_size=2), "x"), "0/?"),
        (progress.track(iter("abc"), "x"), "0/?"),
        (progress.track(iter("abc"), "x", total=7), "0/7"),
    ]
    for tracked, expected in cases:
        next(tracked)
        assert expected in shown(terminal)[0]
        tracked.close()  # type: ignore[attr-defined]


def test_silent_when_not_a_terminal_or_not_wanted(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        with progress.progress_bar("x", total=1) as bar:
            bar.advance(loss=1.0)
        assert list(progress.track(range(3), "x")) == [0, 1, 2]

    run()
    assert log.getvalue() == ""

    file = io.StringIO()
    monkeypatch.setattr(progress, "_console", Console(file=file, force_terminal=True))
    with progress.bars(False):
        run()
        with progress.bars(None):  # keeps what the block around it says
            run()
    monkeypatch.setenv("RANK", "1")
    run()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "_console", Console(file=file, force_terminal=True))
    run()
    assert file.getvalue() == ""


def test_silence_holds_for_all_threads_until_it_is_undone(terminal: io.StringIO) -> None:
    def run() -> None:
        assert list(progress.track(range(3), "x")) == [0, 1, 2]

    progress.silence()
    try:
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        with progress.bars(None):
            run()
        assert terminal.getvalue() == ""
        with progress.bars(True):  # asked for
            run()
        assert terminal.getvalue() != ""
    finally:
        progress.silence(False)
    terminal.truncate(0)
    run()
    assert terminal.getvalue() != ""


def test_a_block_ends_with_what_it_said(terminal: io.StringIO) -> None:
    with contextlib.suppress(OSError), progress.bars(False):
        raise OSError("disk")
    assert list(progress.track(range(3), "x")) == [0, 1, 2]
    assert_clean(terminal)


def test_what_the_program_prints_to_stdout_stays_there(
    terminal: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    for item in progress.track(range(2), "x"):
        print("row", item)
    assert capsys.readouterr().out == "row 0\nrow 1\n"
    assert "row" not in terminal.getvalue()


SCRIPT = """
import sys
from hidden_uncertainty import progress
sys.held = progress.track(range(3), "held")  # outlives the module of the bars
next(sys.held)
raise RuntimeError("boom")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix facility")
def test_a_bar_that_is_never_closed_is_erased_at_exit() -> None:
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    child = subprocess.run([sys.executable, "-c", SCRIPT], stderr=slave, env=environment, timeout=60, check=False)
    os.close(slave)
    output = b""
    with contextlib.suppress(OSError):  # how Linux reports the end of a pseudo-terminal
        while data := os.read(master, 4096):
            output += data
    os.close(master)
    screen = Screen(output.decode())
    assert child.returncode == 1
    assert "RuntimeError: boom" in screen.text[-1]
    assert b"\x1b[?25l" in output
    assert screen.cursor
