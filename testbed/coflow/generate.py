"""Coflow traces made up from a seed, in the format of the public one, for whoever does not have that.

The mix is that of the public trace's four classes (short: flows of 5 MB at most; narrow: 50 flows at most): 60 %
short and narrow, 16 % long and narrow, 12 % short and wide, 12 % long and wide. The rest is ours: places are uniform,
widths and sizes log-uniform in their class, arrivals Poisson at the rate that loads the ports as asked. Only
`Random.random` is drawn from, whose sequence Python keeps from version to version.
"""

from __future__ import annotations

import math
import re
from random import Random

from testbed.coflow.trace import MEGABYTE, Trace, parse_trace
from topologies.errors import UsageError

# Share of all coflows; most places on a side; megabytes of a flow from, to.
_CLASSES = ((0.60, 7, 1, 5), (0.16, 7, 6, 1000), (0.12, 40, 1, 5), (0.12, 40, 6, 1000))
_NARROW = 50
PORTS, COFLOWS, LOAD, RATE = 50, 200, 0.5, 128 * MEGABYTE
_NAME = re.compile(r"synthetic(?::(\d+))?", re.ASCII)


def generate_trace(
    seed: int, ports: int = PORTS, coflows: int = COFLOWS, load: float = LOAD, rate: float = RATE
) -> str:
    """The text of a trace.

    load  mean part of the time in which a port is busy, sending or receiving, from the first arrival to the last
    rate  of a port, bytes/s, which the load refers to
    """
    if ports < 2 or coflows < 1 or not load > 0 or not rate > 0:
        raise UsageError(
            f"a trace of {coflows} coflows on {ports} ports at load {load:g}", hint="2 ports, 1 coflow, above 0"
        )
    rng = Random(seed)
    lines, total = [], 0
    for number in range(1, coflows + 1):
        text, megabytes = _coflow(rng, ports)
        lines.append((number, text))
        total += megabytes
    gap_ms = 1000 * total * MEGABYTE / (coflows * ports * rate * load)
    now, timed = 0.0, []
    for number, text in lines:
        timed.append(f"{number} {round(now)} {text}")
        now -= gap_ms * math.log(1 - rng.random())
    return "\n".join([f"{ports} {coflows}", *timed]) + "\n"


def named_trace(name: str) -> Trace | None:
    """The trace `synthetic` or `synthetic:SEED` stands for; None for anything else."""
    match = _NAME.fullmatch(name)
    return parse_trace(generate_trace(int(match[1] or 1)), name) if match else None


def _coflow(rng: Random, ports: int) -> tuple[str, int]:
    """Mappers and reducers as a line has them, and the megabytes of all."""
    draw, kind = rng.random(), 0
    while kind + 1 < len(_CLASSES) and draw >= _CLASSES[kind][0]:
        draw -= _CLASSES[kind][0]
        kind += 1
    _, side, least, most = _CLASSES[kind]
    side = min(side, ports)
    wide = kind >= 2
    while True:
        mappers, reducers = _log_uniform(rng, 1, side), _log_uniform(rng, 1, side)
        if not wide or mappers * reducers > min(_NARROW, side * side // 2):
            break
    senders, receivers = _places(rng, ports, mappers), _places(rng, ports, reducers)
    each = [_log_uniform(rng, least, most) for _ in receivers]
    words = [mappers, *senders, reducers]
    entries = [f"{place}:{megabytes * mappers}.0" for place, megabytes in zip(receivers, each, strict=True)]
    return " ".join([*map(str, words), *entries]), mappers * sum(each)


def _log_uniform(rng: Random, least: int, most: int) -> int:
    return min(int(least * ((most + 1) / least) ** rng.random()), most)


def _places(rng: Random, ports: int, count: int) -> list[int]:
    """So many different ports, ascending."""
    left = list(range(ports))
    return sorted(left.pop(int(rng.random() * len(left))) for _ in range(count))
