"""How the verbs print: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

SCHEMA = 1
# How long a step may stay silent before a plain log says that it is still going.
HEARTBEAT_S = 10.0


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]


def console(*, stderr: bool = False, wrap_at: int | None = None) -> Console:
    """A console that never cuts a table to the 80 columns that rich assumes of a pipe.

    Args:
        stderr: print there instead of on stdout.
        wrap_at: have cells wrap, at the width of the terminal or, elsewhere, at so many columns.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else wrap_at or 400
    return Console(file=stream, width=width, highlight=False, soft_wrap=wrap_at is None)


def print_json(payload: dict[str, Any]) -> None:
    """One JSON document on stdout, `schema` first."""
    sys.stdout.write(json.dumps({"schema": SCHEMA, **payload}, indent=2, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; a column whose name ends in a unit such as "Mbit/s" is aligned to the right."""
    screen = console()
    with screen.capture() as capture:
        screen.print(make_table(columns, rows, title=title))
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [[cell if isinstance(cell, Text) else str(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        numeric = bool(cells) and all(_numeric(row[number]) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=not sys.stdout.isatty())
    for row in cells:
        table.add_row(*row)
    return table


def _numeric(cell: str | Text) -> bool:
    text = str(cell).rstrip("%")
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).isdigit()


class Progress:
    """Says on stderr what is being done, with the seconds since the start. Callable: `say("starting
    sshd")`.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._said = self._start
        self._current = ""
        self._lock = threading.Lock()
        self._status = Console(file=sys.stderr).status("") if sys.stderr.isatty() else None

    def __call__(self, text: str) -> None:
        with self._lock:
            self._current = text
            self._said = time.monotonic()
            self._line(text)
            if self._status is not None:
                self._status.update(text)

    def _line(self, text: str) -> None:
        line = f"[{time.monotonic() - self._start:5.1f} s] {text}"
        if self._status is not None:
            self._status.console.print(line, style="dim", highlight=False, markup=False)
        else:
            typer.echo(line, err=True)

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            with self._lock:
                now = time.monotonic()
                if self._current and now - self._said >= HEARTBEAT_S:
                    self._said = now
                    self._line(f"still: {self._current}")


@contextmanager
def progress() -> Iterator[Progress]:
    """Progress of one verb: a spinner on a terminal, plain lines elsewhere, a sign of life every ten
    seconds.
    """
    say = Progress()
    stop = threading.Event()
    beat = threading.Thread(target=say._beat, args=(stop,), name="progress", daemon=True)
    beat.start()
    if say._status is not None:
        say._status.start()
    try:
        yield say
    finally:
        stop.set()
        beat.join()
        if say._status is not None:
            say._status.stop()


def mbps(bps: float) -> str:
    """A rate for a table, in Mbit/s."""
    return f"{bps / 1e6:.1f}"


def count(things: Sized, noun: str) -> str:
    """ "1 site", "9 sites"."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
