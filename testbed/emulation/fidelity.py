"""Is the emulated WAN what was declared? A pure verdict over measurements.

Rates: the payload that TCP carried, over the declared rate of whole frames. With full segments and timestamps
1448 of 1514 bytes are payload, so a perfect link shows 0.956.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from topologies.model import DirectedLink
from topologies.units import Loss

LEAST_RATIO: Final = 0.90
MOST_RATIO: Final = 0.97
LEAST_TOGETHER_RATIO: Final = 0.80
"""Below this, a link that is sound alone is short of CPU when all links are busy."""
DELAY_TOLERANCE_S: Final = 0.0015
DELAY_TOLERANCE_RATIO: Final = 0.05
LOSS_DEVIATIONS: Final = 4.0
LEAST_BURSTS: Final = 8
"""From so many bursts on their mean length says something."""
MOST_REASONS: Final = 8
LATENESS_P99_S: Final = 0.002

Verdict = Literal["faithful", "degraded", "saturated"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one direction.

    `retest_skipped`: so many were out of band with all busy that this one was not tested alone.

    `together_bps` with all directions busy, `alone_bps` when it was tested again by itself (None when it
    was not); both are payload, or payload-equivalent where datagrams were used. `delay_s` is the median
    one-way delay of an idle network, None when nothing arrived. `lost` of `sent` probes, 0 of 0 where no
    loss was to be measured; they were lost in `bursts` runs.
    """

    link: DirectedLink
    together_bps: float | None = None
    alone_bps: float | None = None
    delay_s: float | None = None
    sent: int = 0
    lost: int = 0
    bursts: int = 0
    retest_skipped: bool = False

    def ratio(self, bps: float | None) -> float | None:
        return None if bps is None else bps / self.link.rate.bps

    @property
    def name(self) -> str:
        return f"{self.link.src_name} -> {self.link.dst_name}"


def common_excess_s(measured: Sequence[Measured]) -> float | None:
    """What all directions with a delay have on top of it, in seconds: the switches' own time.

    None when there is no such direction. Those with jitter say nothing exact and are left out, unless all
    have it.
    """
    delayed = [m for m in measured if m.link.delay.ns and m.delay_s is not None]
    exact = [m for m in delayed if not m.link.jitter.ns] or delayed
    if not exact:
        return None
    return statistics.median((m.delay_s or 0.0) - m.link.delay.seconds for m in exact)


def in_band(ratio: float | None) -> bool:
    return ratio is not None and LEAST_RATIO <= ratio <= MOST_RATIO


def needs_retest(measured: Measured) -> bool:
    """Whether a direction was out of band with all busy, and has to show what it does alone."""
    return not in_band(measured.ratio(measured.together_bps))


def link_problems(measured: Measured) -> list[str]:
    """What is wrong with a direction by itself, each naming the value declared and the one found."""
    link, problems = measured.link, []
    if measured.delay_s is None:
        problems.append("nothing arrived")
    else:
        declared = link.delay.seconds
        tolerance = max(DELAY_TOLERANCE_S, DELAY_TOLERANCE_RATIO * declared) + link.jitter.seconds
        if abs(measured.delay_s - declared) > tolerance:
            problems.append(f"delay {measured.delay_s * 1e3:.2f} ms instead of {declared * 1e3:g} ms")
    if measured.sent and not _loss_fits(link.loss, measured.sent, measured.lost):
        found = 100 * measured.lost / measured.sent
        problems.append(f"loss {found:.2f}% of {measured.sent} instead of {link.loss}")
    elif not _bursts_fit(link.loss, measured.lost, measured.bursts):
        found = measured.lost / measured.bursts
        problems.append(f"losses in bursts of {found:.1f} instead of {link.loss}")
    best = measured.alone_bps if measured.alone_bps is not None else measured.together_bps
    ratio = measured.ratio(best)
    short_of_cpu = measured.retest_skipped and ratio is not None and ratio < LEAST_RATIO
    if ratio is not None and not in_band(ratio) and not short_of_cpu:
        problems.append(f"{best / 1e6:.1f} Mbit/s of payload ({ratio:.2f}) at {link.rate}")  # type: ignore[operator]
    return problems


def _loss_fits(declared: Loss, sent: int, lost: int) -> bool:
    expected = declared.ratio * sent
    variance = sent * declared.ratio * (1 - declared.ratio)
    if declared.gilbert is not None:
        # What one packet meets, the next one meets too with this correlation, as in any chain of two states.
        correlation = 1 - sum(declared.gilbert)
        variance *= (1 + correlation) / (1 - correlation)
    return abs(lost - expected) <= LOSS_DEVIATIONS * math.sqrt(variance) + 2


def _bursts_fit(declared: Loss, lost: int, bursts: int) -> bool:
    if declared.burst is None or bursts < LEAST_BURSTS:
        return True
    # Lengths are geometric with this mean.
    deviation = math.sqrt(declared.burst * (declared.burst - 1) / bursts)
    return abs(lost / bursts - declared.burst) <= LOSS_DEVIATIONS * deviation + 1 / bursts


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict with what it rests on. Reasons name links; there are none when it is faithful."""

    verdict: Verdict
    reasons: tuple[str, ...]
    measured: tuple[Measured, ...]
    lateness_p99_s: float | None
    cpu_busy_ratio: float | None
    switches_s: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        links = []
        for m in self.measured:
            links.append(
                {
                    "src": m.link.src_name,
                    "dst": m.link.dst_name,
                    "declared_bps": m.link.rate.bps,
                    "together_bps": _rounded(m.together_bps),
                    "alone_bps": _rounded(m.alone_bps),
                    "ratio": _rounded(m.ratio(m.alone_bps if m.alone_bps is not None else m.together_bps), 4),
                    "declared_delay_s": m.link.delay.seconds,
                    "delay_s": _rounded(m.delay_s, 6),
                    "declared_loss_ratio": m.link.loss.ratio,
                    "declared_loss_burst": m.link.loss.burst,
                    "loss_ratio": m.lost / m.sent if m.sent else None,
                    "loss_burst": round(m.lost / m.bursts, 2) if m.bursts else None,
                    "problems": link_problems(m),
                }
            )
        carried = [m.together_bps for m in self.measured if m.together_bps is not None]
        return {
            "schema": 1,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "declared_bps": sum(m.link.rate.bps for m in self.measured),
            "carried_bps": _rounded(sum(carried)) if carried else None,
            "lateness_p99_s": self.lateness_p99_s,
            "cpu_busy_ratio": _rounded(self.cpu_busy_ratio, 3),
            "switches_s": self.switches_s,
            "duration_s": round(self.seconds, 3),
            "links": links,
        }


def judge(
    measured: Sequence[Measured],
    *,
    lateness_p99_s: float | None = None,
    cpu_busy_ratio: float | None = None,
    switches_s: float = 0.0,
    seconds: float = 0.0,
) -> Report:
    """The verdict over all directions.

    `degraded`: a direction is not what was declared even by itself, or the delay line is late. `saturated`:
    every direction is sound alone, but with all busy the machine does not keep up. `faithful`: neither.
    """
    reasons = [f"{m.name}: {problem}" for m in measured for problem in link_problems(m)]
    if lateness_p99_s is not None and lateness_p99_s > LATENESS_P99_S:
        reasons.append(
            f"one frame in a hundred leaves the delay line {lateness_p99_s * 1e3:g} ms late or later"
        )
    verdict: Verdict = "degraded" if reasons else "faithful"
    if not reasons:
        reasons = _shortage(measured)
        if reasons:
            verdict = "saturated"
    return Report(
        verdict,
        tuple(_shortened(reasons)),
        tuple(measured),
        lateness_p99_s,
        cpu_busy_ratio,
        switches_s,
        seconds,
    )


def _shortage(measured: Sequence[Measured]) -> list[str]:
    """What is missing with all directions busy, when each is sound alone."""
    tested = [m for m in measured if m.together_bps is not None]
    reasons = []
    for m in tested:
        ratio = m.ratio(m.together_bps)
        if ratio is not None and ratio < LEAST_TOGETHER_RATIO:
            reasons.append(f"{m.name}: only {ratio:.2f} of {m.link.rate} while all links are busy")
    declared = sum(m.link.rate.bps for m in tested)
    carried = sum(m.together_bps or 0.0 for m in tested)
    if tested and carried < LEAST_RATIO * declared:
        scale = math.floor(100 * LEAST_RATIO * carried / declared) / 100
        reasons.append(
            f"all links together carry {carried / 1e6:.0f} of {declared / 1e6:.0f} Mbit/s; "
            f"rates scaled by {scale:g} would fit this machine"
        )
    return reasons


def _shortened(reasons: list[str]) -> list[str]:
    """The first and the last reasons; every link's own problems are in the report's links."""
    left_out = len(reasons) - MOST_REASONS
    if left_out <= 1:
        return reasons
    return [*reasons[: MOST_REASONS - 1], f"and {left_out} more of this kind", reasons[-1]]


def with_delays(measured: Measured, delays_s: Sequence[float], sent: int, *, count_loss: bool) -> Measured:
    """A direction with what probes have shown of it."""
    return replace(
        measured,
        delay_s=statistics.median(delays_s) if delays_s else None,
        sent=sent if count_loss else 0,
        lost=sent - len(delays_s) if count_loss else 0,
    )


def _rounded(value: float | None, digits: int = 0) -> float | None:
    return None if value is None else round(value, digits) if digits else float(round(value))
