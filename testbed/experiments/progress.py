"""How far a segment is, from the trace of one worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


class TraceFollower:
    """Reads what a worker has added to its trace since the last look.

    Args:
        path: the trace; it may not exist yet.
        segment: the label whose iterations are told.
    """

    def __init__(self, path: Path, segment: str) -> None:
        self._path = path
        self._segment = segment
        self._offset = path.stat().st_size if path.exists() else 0
        self._partial = b""
        self._count = 0

    def news(self) -> Iterator[str]:
        """A few words for every iteration that has ended since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return
        self._offset += len(added)
        *lines, self._partial = (self._partial + added).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("segment") != self._segment or "iteration" not in record:
                continue
            self._count += 1
            seconds = (record["done_ns"] - record["ready_ns"]) / 1e9
            yield f"synchronised in {seconds:.2f} s, {self._count}"
