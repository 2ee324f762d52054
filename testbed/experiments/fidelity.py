"""Whether the network was what it was declared to be while a run went on. Pure.

Judged by effects, not by how busy the machine was: links with a queue waiting must have carried what their
rate allows, and the delay line must have let go of frames in time. A queue drains within milliseconds, so two
samples that both find it filled do not show that it was so in between, unless both fall into one and the same
synchronisation: only such intervals are judged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.emulation.impairment import quantile_s
from testbed.experiments.manifest import FidelityRow

FAITHFUL_RATIO: Final = 0.90
SATURATED_RATIO: Final = 0.75
LATENESS_P99_S: Final = 2e-3
# A link counts as waiting in an interval when this much was queued at both of its ends...
WAITING_BYTES: Final = 128 * 1024
# ...and is judged when that was so for this long altogether.
JUDGED_S: Final = 3.0
# Losses that nobody declared and that are not TCP's own finding of the rate.
_UNWANTED: Final = ("overflow", "missed")
_ORDER: Final = ("unknown", "faithful", "degraded", "saturated")

Sample = Mapping[str, Any]
"""What the supervisor's verb `sample` answers."""


Window = tuple[int, int]
"""From and to, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A link that had data waiting at both ends of an interval."""

    link: str
    began_ns: int
    ended_ns: int
    carried_bits: float
    could_bits: float


@dataclass
class FidelityWatch:
    """Follows the samples of a run and gives the verdict at its end."""

    _first: Sample | None = None
    _last: Sample | None = None
    _waiting: list[_Waiting] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """The next sample, in order of time."""
        before = self._last
        if before is None:
            self._first = sample
        else:
            self._follow(before, sample)
        self._last = sample

    def _follow(self, before: Sample, now: Sample) -> None:
        interval_s = (now["monotonic_ns"] - before["monotonic_ns"]) / 1e9
        for old, new in zip(before["links"], now["links"], strict=True):
            if min(old["backlog_bytes"], new["backlog_bytes"]) < WAITING_BYTES:
                continue
            if old["rate_bps"] != new["rate_bps"]:
                continue
            carried, could = (new["bytes"] - old["bytes"]) * 8, new["rate_bps"] * interval_s
            self._waiting.append(
                _Waiting(_name(new), before["monotonic_ns"], now["monotonic_ns"], carried, could)
            )

    def judge(
        self,
        calibration: Mapping[str, Any] | None,
        synchronisations: Sequence[Window] = (),
        interference: Sequence[str] = (),
    ) -> FidelityRow:
        """The verdict over calibration and run together: the worse of the two, and why.

        It is unknown when neither has judged a link.

        Args:
            calibration: what bring-up found, with its `verdict` and `reasons`; None where it was left out.
            synchronisations: when gradients were under way, in order and apart from each other.
            interference: what others did to the links meanwhile; with any, the network was not as declared.
        """
        verdict = "unknown"
        reasons: list[str] = []
        if calibration is not None:
            verdict = str(calibration.get("verdict", "unknown"))
            reasons += [f"at bring-up: {reason}" for reason in calibration.get("reasons", ())]
        run: dict[str, Any] | None = None
        if self._first is not None and self._last is not None and self._last is not self._first:
            run = self._measure(self._first, self._last, synchronisations)
            found, why = judge_measures(run)
            verdict = max(verdict, found, key=_rank)
            reasons += why
        if interference:
            verdict = max(verdict, "degraded", key=_rank)
            reasons += interference
        if verdict not in _ORDER or verdict == "unknown":
            verdict = "unknown"
            reasons.append(f"{_uncalibrated(calibration)}, and no link was busy for long enough to be judged")
        return FidelityRow(
            verdict=verdict,
            reasons=tuple(reasons),
            calibration=None if calibration is None else dict(calibration),
            run=run,
        )

    def _measure(self, first: Sample, last: Sample, synchronisations: Sequence[Window]) -> dict[str, Any]:
        lateness: dict[str, float] = {}
        unwanted: dict[str, int] = {}
        queue_drops = 0
        for old, new in zip(first["links"], last["links"], strict=True):
            queue_drops += max(0, new["drops"] - old["drops"])
            line, line_before = new.get("delay_line"), old.get("delay_line")
            if not line:
                continue
            late = quantile_s(_gain(line["lateness"], (line_before or {}).get("lateness")), 0.99)
            if late is not None:
                lateness[_name(new)] = late
            drops_before = (line_before or {}).get("drops", {})
            count = sum(line["drops"].get(cause, 0) - drops_before.get(cause, 0) for cause in _UNWANTED)
            if count > 0:
                unwanted[_name(new)] = count
        cpu = {key: last["cpu"][key] - first["cpu"][key] for key in ("busy_s", "steal_s", "idle_s")}
        total = sum(cpu.values())
        worst = max(lateness, key=lambda link: lateness[link], default=None)
        return {
            "duration_s": (last["monotonic_ns"] - first["monotonic_ns"]) / 1e9,
            "cpu_busy_ratio": cpu["busy_s"] / total if total else None,
            "cpu_steal_ratio": cpu["steal_s"] / total if total else None,
            "lateness_p99_s": lateness[worst] if worst else None,
            "lateness_link": worst,
            "unwanted_drops": unwanted,
            "queue_drops": queue_drops,
            "waiting_links": self._waiting_links(synchronisations),
        }

    def _waiting_links(self, synchronisations: Sequence[Window]) -> dict[str, dict[str, float]]:
        by_link: dict[str, list[_Waiting]] = {}
        starts = [began for began, _ in synchronisations]
        for waiting in self._waiting:
            place = bisect_right(starts, waiting.began_ns) - 1
            if place >= 0 and waiting.ended_ns <= synchronisations[place][1]:
                by_link.setdefault(waiting.link, []).append(waiting)
        result = {}
        for link, found in sorted(by_link.items()):
            seconds = sum(waiting.ended_ns - waiting.began_ns for waiting in found) / 1e9
            if seconds >= JUDGED_S:
                carried, could = (
                    sum(getattr(w, key) for w in found) for key in ("carried_bits", "could_bits")
                )
                result[link] = {"waited_s": seconds, "carried_ratio": carried / could}
        return result


def judge_measures(run: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The verdict of a run's measures, and its reasons. Unknown when no link was judged and nothing is wrong."""
    verdict = "faithful" if run["waiting_links"] else "unknown"
    reasons: list[str] = []
    slow = {link: found["carried_ratio"] for link, found in run["waiting_links"].items()}
    slow = {link: ratio for link, ratio in slow.items() if ratio < FAITHFUL_RATIO}
    if slow:
        worst = min(slow, key=lambda link: slow[link])
        verdict = "saturated" if slow[worst] < SATURATED_RATIO else "degraded"
        more = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
        reasons.append(f"link {worst} carried {slow[worst]:.0%} of its rate while data waited{more}")
    late = run["lateness_p99_s"]
    if late is not None and late >= LATENESS_P99_S:
        verdict = max(verdict, "degraded", key=_rank)
        reasons.append(
            f"link {run['lateness_link']} let 1 % of its frames go {late * 1e3:.1f} ms late or more"
        )
    if run["unwanted_drops"]:
        verdict = max(verdict, "degraded", key=_rank)
        link = max(run["unwanted_drops"], key=lambda name: run["unwanted_drops"][name])
        reasons.append(f"link {link} lost {run['unwanted_drops'][link]} segments that were not to be lost")
    return verdict, reasons


def _uncalibrated(calibration: Mapping[str, Any] | None) -> str:
    return "the testbed was not calibrated" if calibration is None else "calibration came to no verdict"


def _rank(verdict: str) -> int:
    return _ORDER.index(verdict) if verdict in _ORDER else 0


def _name(link: Mapping[str, Any]) -> str:
    return f"{link['src']}>{link['dst']}"


def _gain(now: Sequence[int], before: Sequence[int] | None) -> list[int]:
    return [count - (before[k] if before else 0) for k, count in enumerate(now)]
