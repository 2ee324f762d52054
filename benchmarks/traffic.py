"""The program that makes the traffic of every comparison, started the same way for every network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PROGRAM = (sys.executable, "-m", "testbed.emulation.traffic")


def start(argv: Sequence[str], sites: Sequence[dict[str, Any]], request: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a request.

    Args:
        argv: `PROGRAM`, perhaps behind what enters namespaces.
        sites: the pid and the address of each.
        request: see `testbed.emulation.traffic`.
    """
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"sites": list(sites), **request}))
    process.stdin.close()
    process.stdin = None
    return process


def answer(process: subprocess.Popen[str], timeout: float) -> dict[str, Any]:
    """What it measured."""
    out, _ = process.communicate(timeout=timeout)
    result: dict[str, Any] = json.loads(out)
    return result
