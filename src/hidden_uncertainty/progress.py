"""Progress of long operations, drawn on stderr when a person watches and silent otherwise.

All bars of a process, nested or in several threads, are rows of one shared display, which appears with the first
and is erased with the last. Whether bars are drawn is said once, by `bars`, for everything that runs inside it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from .notes import first_process

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")

_wanted: ContextVar[bool | None] = ContextVar("wanted", default=None)
_silent = False  # what holds where no block and no `progress=` says anything
_console: Console | None = None
# Re-entrant: the garbage collector may close an abandoned bar while its thread opens another.
_lock = threading.RLock()
_display: Progress | None = None


class Bar:
    """One row of the display, or nothing visible at all; made by `progress_bar`."""

    def __init__(self, description: str, total: int | None = None) -> None:
        self.description, self.total, self.completed = description, total, 0
        self._info: dict[str, str] = {}
        self._row: tuple[Progress, TaskID] | None = None

    def advance(self, n: int = 1, **info: float | str) -> None:
        """Record `n` more steps, and named values to show beside them, each until it is given again."""
        self.completed += n
        self._info |= {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in info.items()}
        if self._row is not None and self._row[0] is _display:
            display, row = self._row
            display.update(row, advance=n, info="  ".join(f"{name} {value}" for name, value in self._info.items()))


def silence(silent: bool = True) -> None:
    """Draw no bars in this process from now on, but where `bars(True)` or `progress=True` asks; False undoes it.

    Example:
        >>> silence()
        >>> silence(False)
    """
    global _silent
    _silent = silent


@contextmanager
def bars(enabled: bool | None) -> Iterator[None]:
    """Say for a block, and for all that it calls, whether bars are drawn.

    Args:
        enabled: False never draws bars, True wherever stderr is a terminal. None keeps what a block around this one
            says; without one, bars are drawn on a terminal in the first of several processes, unless `silence` was
            called.

    Example:
        >>> with bars(False), progress_bar("mixture", total=3) as bar:
        ...     bar.advance()
    """
    token = _wanted.set(_wanted.get() if enabled is None else enabled)
    try:
        yield
    finally:
        _wanted.reset(token)


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Bar]:
    """Show one bar for the length of a `with` block; whatever ends the block, the terminal is left as it was."""
    bar, wanted = Bar(description, total), _wanted.get()
    if wanted is None:
        wanted = not _silent and first_process()
    if wanted and _drawable():
        bar._row = _open(bar)
    try:
        yield bar
    finally:
        if bar._row is not None:
            row, bar._row = bar._row, None
            _close(*row)


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """Iterate over `items` behind a bar; `total` is how many there are, `len(items)` when it has one."""
    with progress_bar(description, count(items) if total is None else total) as bar:
        for item in items:
            yield item
            bar.advance()


def count(items: Iterable[object]) -> int | None:
    """How many items or batches there are, where that is known."""
    try:
        return len(items)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # what a DataLoader over a stream raises
        return None


def _drawable() -> bool:
    """Whether stderr is a terminal that bars can be drawn on; rich is imported only where it is."""
    global _console
    if _console is None and sys.stderr.isatty():
        from rich.console import Console

        _console = Console(stderr=True)
    return _console is not None and _console.is_interactive


def _open(bar: Bar) -> tuple[Progress, TaskID]:
    global _display
    with _lock:
        if _display is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            display = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[info]}", markup=False, style="dim"),
                console=_console,
                transient=True,
                # Redirection sends what the program prints to stdout to stderr, also when stdout is a file.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            display.start()
            _display = display
        return _display, _display.add_task(bar.description, total=bar.total, info="")


def _close(display: Progress, row: TaskID) -> None:
    with _lock:
        if display is not _display:  # it belongs to the process that this one was forked from
            return
        display.remove_task(row)
        if not display.tasks:
            _stop()


@atexit.register
def _stop() -> None:
    """Erase the display and show the cursor again; at exit for a bar that was never closed."""
    global _display
    with _lock:
        display, _display = _display, None
        if display is not None:
            display.stop()


def _after_fork() -> None:
    """The thread that draws is not in the child, and its locks may be held for ever."""
    global _lock, _display, _console
    _lock, _display, _console = threading.RLock(), None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
