"""What one synchronisation of a distributed training job sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agents.coflow.base import CoflowError, Number
from agents.coflow.fabric import Flow

Pattern = Literal["ring", "ps"]
PATTERNS: tuple[Pattern, ...] = ("ring", "ps")


def synchronisation(pattern: Pattern, workers: Sequence[int], size: Number, server: int | None = None) -> list[Flow]:
    """The flows of one coflow for a model of `size` bytes.

    ring  each worker sends 2 (W - 1) / W models to the next one
    ps    every worker sends the server a model and gets one; a worker at the server's own place sends nothing
    """
    if len(set(workers)) < len(workers) or len(workers) < 2 - (pattern == "ps"):
        raise CoflowError(f"workers at {list(workers)}", hint="each at a place of its own, two at least in a ring")
    if pattern == "ring":
        hop = 2 * (len(workers) - 1) * size / len(workers)
        return [Flow(place, workers[(k + 1) % len(workers)], hop) for k, place in enumerate(workers)]
    if pattern != "ps":
        raise CoflowError(f"a pattern {pattern!r}", hint=" or ".join(PATTERNS))
    if server is None:
        raise CoflowError("a parameter server needs a place")
    remote = [place for place in workers if place != server]
    return [Flow(place, server, size) for place in remote] + [Flow(server, place, size) for place in remote]
