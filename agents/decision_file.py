"""Where the coordinator keeps what was decided per transfer: a file of JSON lines beside the testbed's own.

`agents.sync.decisions` says what a line holds. The runner takes the file into its run directory when the run is
over; what nobody takes goes with the testbed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

log = logging.getLogger(__name__)

SCHEMA: Final = 1
FOLDER: Final = "decisions"
# Nine sites, AlexNet in chunks of 100,000: 4 MB a synchronisation. What comes after this many is not kept.
MAX_BYTES: Final = 256 * 1024 * 1024


def decision_path(run_dir: Path, job: str) -> Path:
    """The file of a job."""
    return run_dir / FOLDER / f"{re.sub(r'[^A-Za-z0-9._-]', '-', job)}.jsonl"


class DecisionFile:
    """Made when the first line is written; a disk that takes no more ends it, with a warning."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._left = max_bytes
        self._file: TextIO | None = None
        self._segment = ""
        self._ended = False

    def begin(self, segment: str) -> None:
        """What follows belongs to this segment."""
        self._segment = segment

    def write(self, record: Mapping[str, Any]) -> None:
        """One line: the record with its schema and segment."""
        if self._ended:
            return
        line = json.dumps({"schema": SCHEMA, "segment": self._segment, **record}) + "\n"
        self._left -= len(line)
        if self._left < 0:
            log.warning("%s: no more than %d bytes of decisions are kept", self.path, MAX_BYTES)
            self.close()
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(line)
        except OSError as error:
            log.warning("decisions are not kept any more: %s: %s", self.path, error.strerror)
            self.close()

    def flush(self) -> None:
        """What was written is in the file now."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                log.warning("decisions are not kept any more: %s: %s", self.path, error.strerror)
                self.close()

    def close(self) -> None:
        """Nothing more is written."""
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("%s may lack its last lines: %s", self.path, error.strerror)
