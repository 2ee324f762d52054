"""What processes of a testbed find around them, and what they leave behind in their logs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from testbed import sites

PYTHON: Final = sys.executable
"""Absolute, so that every process runs on the Python that the testbed was started with."""


def base_environment() -> dict[str, str]:
    """What every process gets, whatever the caller of `up` had set: its own words and little else."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("STORMBED_", "OVS_")) or key == "PYTHONPATH"
    }
    return {"PATH": sites.SITE_PATH, "HOME": "/root", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"} | kept


def log_tail(path: Path, lines: int = 5) -> str:
    """The last lines of a log, for a message about the process that wrote it."""
    try:
        text = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return " | ".join(text[-lines:])
