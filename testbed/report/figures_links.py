"""How busy every directed link was over a run: the heat map."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from testbed.report.figures import BED, CARD, LEVELS, Figure, drawing, style_of, themed, to_svg
from testbed.report.measurements import LinkSample, Measurements

# From which share of its rate on a link shows the next colour; the live page has the same.
STEPS: Final = (0.02, 0.4, 0.75, 0.95)
_NAMES: Final = ("idle", "below 40 %", "40-75 %", "75-95 %", "95 % and more")
_MOST_ROWS: Final = 80
_MOST_COLUMNS: Final = 400


@dataclass(frozen=True)
class Stretch:
    """A link that stayed at one level of use from `t0` to `t1` (seconds since the run began)."""

    row: int
    level: int
    t0: float
    t1: float


@themed
def utilisation(run: Measurements) -> Figure | None:
    """The use of every directed link over time, busiest at the top."""
    if not run.links:
        return None
    names = _busiest_first(run.links)
    kept = names[:_MOST_ROWS]
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    made, (axes,) = drawing(1.1 + 0.155 * len(kept))
    by_level: dict[int, list[Path]] = {}
    end = max(sample.t_s for sample in run.links)
    for stretch in stretches(coarser(run.links, end / _MOST_COLUMNS), kept):
        low, high = stretch.row - 0.42, stretch.row + 0.42
        corners = [
            (stretch.t0, low), (stretch.t1, low), (stretch.t1, high), (stretch.t0, high), (stretch.t0, low)
        ]  # fmt: skip
        by_level.setdefault(stretch.level, []).append(Path(corners, closed=True))
    for level, paths in sorted(by_level.items()):
        # One path a level, however many stretches: thousands of elements make a browser slow.
        path = Path.make_compound_path(*paths)
        axes.add_patch(PathPatch(path, facecolor=BED if level == 0 else LEVELS[level], edgecolor="none"))
    starts: dict[str, float] = {}
    for sample in run.links:
        starts.setdefault(sample.segment, sample.t_s - sample.interval_s)
    shown = {segment.label: segment.scheduler for segment in run.manifest.segments}
    for label, start in starts.items():
        if label not in shown:
            continue  # before the first turn, and between two
        colour = style_of(shown[label], run.manifest).colour
        stop = max(sample.t_s for sample in run.links if sample.segment == label)
        axes.barh(-1.15, stop - start, left=start, height=0.8, color=colour, edgecolor=CARD)
        if (stop - start) / end > 0.012 * len(label):
            axes.annotate(label, (start, -1.7), fontsize=8.5, va="bottom", annotation_clip=False)
    axes.set_ylim(len(kept) - 0.4, -1.7)
    axes.set_xlim(0, end)
    axes.set_yticks(range(len(kept)), [f"{src} > {dst}" for src, dst in kept], fontsize=7.5)
    axes.grid(visible=False)
    patches = [Patch(color=BED if level == 0 else LEVELS[level], label=name) for level, name in enumerate(_NAMES)]
    axes.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(0, -34 / (72 * (0.155 * len(kept) + 0.4))),
        ncols=5, fontsize=8.5, handlelength=1.3, handleheight=0.8,
    )  # fmt: skip
    axes.set_xlabel("seconds since the run began")
    cut = f" The {_MOST_ROWS} busiest of {len(names)} are shown." if len(names) > len(kept) else ""
    return Figure(
        "utilisation",
        "Use of the links over time",
        "A row is one direction of a link, those that carried the highest share of their rate at the top; "
        "the coloured strip says whose turn it was. Share of the rate that was configured at that moment." + cut,
        to_svg(made, "heat", "Utilisation of every directed link over the run"),
    )


def coarser(samples: Sequence[LinkSample], width_s: float) -> list[LinkSample]:
    """Samples joined until they are `width_s` long, none across the end of a turn; a long run stays small."""
    waiting: dict[tuple[str, str], list[LinkSample]] = {}
    result: list[LinkSample] = []
    for sample in samples:
        held = waiting.setdefault((sample.src, sample.dst), [])
        if held and held[0].segment != sample.segment:
            result.append(_joined(held))
            held.clear()
        held.append(sample)
        if sum(one.interval_s for one in held) >= width_s:
            result.append(_joined(held))
            held.clear()
    return [*result, *(_joined(held) for held in waiting.values() if held)]


def _joined(samples: Sequence[LinkSample]) -> LinkSample:
    if len(samples) == 1:
        return samples[0]
    seconds = sum(sample.interval_s for sample in samples) or 1.0
    return replace(
        samples[-1],
        interval_s=seconds,
        configured_bps=round(sum(one.configured_bps * one.interval_s for one in samples) / seconds),
        achieved_bps=sum(one.achieved_bps * one.interval_s for one in samples) / seconds,
        carried_bytes=sum(one.carried_bytes for one in samples),
        dropped_packets=sum(one.dropped_packets for one in samples),
    )


def stretches(samples: Sequence[LinkSample], rows: Sequence[tuple[str, str]]) -> list[Stretch]:
    """Samples as stretches of one level; neighbours of the same level are one."""
    place: Mapping[tuple[str, str], int] = {name: k for k, name in enumerate(rows)}
    last: dict[int, Stretch] = {}
    result: list[Stretch] = []
    for sample in sorted(samples, key=lambda sample: sample.t_s):
        row = place.get((sample.src, sample.dst))
        if row is None or sample.interval_s <= 0:
            continue
        use = sample.achieved_bps / sample.configured_bps if sample.configured_bps else 0.0
        level, begun = bisect_right(STEPS, use), sample.t_s - sample.interval_s
        before = last.get(row)
        if before is not None and before.level == level and begun - before.t1 < 0.05 * sample.interval_s:
            last[row] = Stretch(row, level, before.t0, sample.t_s)
            continue
        if before is not None:
            result.append(before)
        last[row] = Stretch(row, level, begun, sample.t_s)
    return [*result, *last.values()]


def _busiest_first(samples: Sequence[LinkSample]) -> list[tuple[str, str]]:
    did: dict[tuple[str, str], float] = {}
    could: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = (sample.src, sample.dst)
        did[key] = did.get(key, 0.0) + sample.carried_bytes * 8
        could[key] = could.get(key, 0.0) + sample.configured_bps * sample.interval_s
    return sorted(did, key=lambda key: (-did[key] / could[key] if could[key] else 0.0, key))
