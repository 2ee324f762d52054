"""Tables of measurements in documents: each stands between two markers that name it."""

from __future__ import annotations

from collections.abc import Sequence
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
