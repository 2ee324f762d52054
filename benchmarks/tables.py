"""Tables of measurements in documents: each stands between two markers that name it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def write_table(document: Path, name: str, text: str) -> None:
    """Put a table between `<!-- name -->` and `<!-- /name -->`. SystemExit where the document has no such place."""
    head, begin, rest = document.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise SystemExit(f"{document} has no place for the table {name}")
    document.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def measured(document: Path | None, name: str, measure: Callable[[], str]) -> None:
    """Measure, print, and write the table with the day and the load that it was measured under.

    Numbers of a busy machine are those of a busy machine.

    Args:
        document: where the table has its place; None only prints.
        name: the table's.
        measure: returns a sentence and the table.
    """
    load = os.getloadavg()[0]
    text = measure()
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    text = f"{day}, {os.cpu_count()} cores, load before {load:.1f}. {text}"
    sys.stdout.write(f"{name}\n\n{text}\n")
    sys.stdout.flush()
    if document is not None:
        write_table(document, name, text)
