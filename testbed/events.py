"""The event log: what happened to a testbed and when, one JSON object a line.

Every line carries `t_s` (unix time), `monotonic_ns` (CLOCK_MONOTONIC, comparable between all processes and
sites of one machine) and `kind`. Lines are appended whole, so that several processes may write one log.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_RESERVED = frozenset({"t_s", "monotonic_ns", "kind"})


class EventLog:
    """An append-only log of JSON lines.

    Args:
        path: the file; made when missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **fields: object) -> None:
        """Append one event. Values that JSON does not know are written as their text."""
        clash = _RESERVED.intersection(fields)
        if clash:
            raise ValueError(f"the event field {sorted(clash)[0]!r} is written by the log itself")
        event: dict[str, object] = {
            "t_s": time.time(),
            "monotonic_ns": time.monotonic_ns(),
            "kind": kind,
            **fields,
        }
        # One write of one line: appends below the file's lock, so lines of several writers do not mix.
        os.write(self._fd, (json.dumps(event, default=str) + "\n").encode())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path | str, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of a log in order, or those of one kind. A torn line, of a writer that died, is left out."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict) and (kind is None or event.get("kind") == kind):
            yield event
