"""The process that serves a standing testbed's page: who it is, and how it ends.

It runs in the caller's own namespaces, so the kernel does not end it with the testbed. It ends by itself when
the supervisor does, whatever ended that; `down` ends it first and waits, so that nothing outlives the command.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Final

from testbed.emulation.waiting import is_running, start_ticks, wait_for
from topologies.errors import CleanupError, DeadlineError

RECORD: Final = "page.json"
END_S: Final = 5.0


def write_record(run_dir: Path, url: str) -> None:
    """Note that this process serves the page at `url`."""
    record = {"schema": 1, "url": url, "pid": os.getpid(), "started_ticks": start_ticks(os.getpid())}
    fresh = run_dir / f"{RECORD}.new"
    fresh.write_text(json.dumps(record), encoding="utf-8")
    fresh.replace(run_dir / RECORD)


def page_url(run_dir: Path) -> str | None:
    """Where the testbed's page is served; None where it is not."""
    found = _running(run_dir)
    return None if found is None else found[1]


def end_page(run_dir: Path) -> None:
    """End the process, if it runs.

    Raises:
        CleanupError: it did not end.
    """
    found = _running(run_dir)
    if found is None:
        return
    pid = found[0]
    ticks = start_ticks(pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_running(pid, ticks):
            return
        try:
            os.kill(pid, number)
            wait_for(lambda: not is_running(pid, ticks), f"the page's process {pid} to end", END_S)
        except ProcessLookupError:
            return
        except DeadlineError as error:
            if number == signal.SIGKILL:
                raise CleanupError(f"the page's process {pid} does not end: {error.message}") from None


def _running(run_dir: Path) -> tuple[int, str] | None:
    """Its id and address."""
    try:
        record = json.loads((run_dir / RECORD).read_text(encoding="utf-8"))
        pid, ticks, url = int(record["pid"]), int(record["started_ticks"]), str(record["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (pid, url) if is_running(pid, ticks) else None
