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


CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
"""What the links, the delay line and the namespaces are made with, by their numbers in the kernel."""


def missing_capabilities(status: str | None = None) -> tuple[str, ...]:
    """What this process lacks of `CAPABILITIES`; root in a container often lacks some.

    Args:
        status: the text of /proc/self/status; read when left out.
    """
    text = Path("/proc/self/status").read_text(encoding="utf-8") if status is None else status
    effective = next(int(line.split()[1], 16) for line in text.splitlines() if line.startswith("CapEff:"))
    return tuple(name for name, bit in CAPABILITIES.items() if not effective >> bit & 1)


def capability_hint(absent: tuple[str, ...]) -> str:
    """How a container gets what it lacks."""
    options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in absent)
    return f"give it to the container, as `docker run {options}` does, or simulate"


def log_tail(path: Path, lines: int = 5) -> str:
    """The last lines of a log, for a message about the process that wrote it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return " | ".join(text[-lines:])
