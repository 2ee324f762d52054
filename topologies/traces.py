"""Traces of changing links: CSV (one line a change) and mahimahi (one line a packet), and one into the other.

CSV has the header `t_s,link,rate_mbit,delay_ms,loss`; a value holds until the next line about it, an empty
cell changes nothing. `link` is `dc1>dc2` for one direction, `dc1-dc2` for both, `*` for every link; `loss` is
a ratio from 0 to 1, or per cent with the sign (`1%`, `1% burst 8`). mahimahi's format is one whole number of
milliseconds a line, each an opportunity to send a packet of 1500 bytes; the trace begins anew when it is
exhausted.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from topologies.errors import InvalidFileError, StormbedError, UsageError, nearest
from topologies.files import read_text
from topologies.model import Topology
from topologies.units import Delay, Loss, Rate

COLUMNS = ("t_s", "link", "rate_mbit", "delay_ms", "loss")
PACKET_BITS = 1500 * 8
MAX_BYTES = 50_000_000
_MOST_STRETCHES = 1_000_000
LEAST_RATE = Rate(PACKET_BITS)
"""What a stretch of a mahimahi trace without any packet is taken for: one packet a second."""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """The new values of one direction of a link; None leaves a value as it is."""

    rate: Rate | None = None
    delay: Delay | None = None
    loss: Loss | None = None

    def over(self, before: LinkChange) -> LinkChange:
        """This change after another one."""
        return LinkChange(
            self.rate or before.rate,
            before.delay if self.delay is None else self.delay,
            before.loss if self.loss is None else self.loss,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a CSV trace."""

    t_s: float
    link: str
    change: LinkChange
    line: int


def select(topology: Topology, link: str) -> tuple[int, ...]:
    """The directions that `dc1>dc2`, `dc1-dc2` or `*` means, by index; UsageError when there is none."""
    if link.strip() == "*":
        return tuple(range(len(topology.directed)))
    for arrow in ("->", "→", ">"):
        src, found, dst = link.partition(arrow)
        if found:
            ends = [topology.index(end.strip()) for end in (src, dst)]
            return (topology.between(*ends).index,)
    words = link.strip().split("-")
    pairs = [("-".join(words[:cut]), "-".join(words[cut:])) for cut in range(1, len(words))]
    known = [pair for pair in pairs if set(pair) <= set(topology.site_names)]
    if not known:
        links = [f"{d.src_name}-{d.dst_name}" for d in topology.directed]
        raise UsageError(f"{topology.name} has no link {link!r}", hint=nearest(link, links))
    # Site names have hyphens of their own; of all readings only those that are links count.
    both = [
        (d.index, topology.between(d.dst, d.src).index)
        for d in topology.directed
        if (d.src_name, d.dst_name) in known
    ]
    if not both:
        raise UsageError(f"no link of {topology.name} joins {' and '.join(known[0])}")
    if len(both) > 1:
        raise UsageError(
            f"{link!r} may mean several links of {topology.name}", hint="write one as a>b and b>a"
        )
    return both[0]


def read_csv(path: str | Path) -> tuple[Entry, ...]:
    return parse_csv(read_text(path, MAX_BYTES), str(path))


def parse_csv(text: str, source: str = "trace") -> tuple[Entry, ...]:
    """The lines of a CSV trace, in order of time; InvalidFileError names the line that is wrong."""
    rows = csv.reader(io.StringIO(text), strict=True)
    entries: list[Entry] = []
    header: list[str] | None = None
    try:
        for row in rows:
            line = rows.line_num
            if not row or (row[0].startswith("#") and header is None):
                continue
            cells = [cell.strip() for cell in row]
            if header is None:
                header = _header(cells, source, line)
                continue
            entry = _entry(dict(zip(header, cells, strict=False)), len(cells) == len(header), source, line)
            if entries and entry.t_s < entries[-1].t_s:
                raise InvalidFileError(
                    f"{source}, line {line}: {entry.t_s:g} s comes after {entries[-1].t_s:g} s",
                    hint="sort the lines by t_s",
                )
            entries.append(entry)
    except csv.Error as error:
        raise InvalidFileError(f"{source}, line {rows.line_num}: not valid CSV: {error}") from None
    if not entries:
        raise InvalidFileError(f"{source}: there is no line in it", hint=f"begin with {','.join(COLUMNS)}")
    return tuple(entries)


def _header(cells: Sequence[str], source: str, line: int) -> list[str]:
    for name in cells:
        if name not in COLUMNS:
            raise InvalidFileError(
                f"{source}, line {line}: unknown column {name!r}", hint=nearest(name, COLUMNS)
            )
    for name in COLUMNS[:2]:
        if name not in cells:
            raise InvalidFileError(f"{source}, line {line}: the column {name} is missing")
    if len(set(cells)) < len(cells) or len(cells) < 3:
        raise InvalidFileError(
            f"{source}, line {line}: not a header of a trace", hint=f"write {','.join(COLUMNS)}"
        )
    return list(cells)


def _entry(cells: dict[str, str], whole: bool, source: str, line: int) -> Entry:
    where = f"{source}, line {line}"
    if not whole:
        raise InvalidFileError(f"{where}: it has more or fewer cells than the header")

    def number(name: str) -> float:
        try:
            value = float(cells[name])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidFileError(f"{where}: {name}: {cells[name][:40]!r} is not a number")
        return value

    t_s = number("t_s")
    if t_s < 0:
        raise InvalidFileError(f"{where}: t_s: {t_s:g} is before the beginning")
    if not cells["link"]:
        raise InvalidFileError(f"{where}: link: it is empty", hint="write dc1>dc2, dc1-dc2 or *")
    try:
        change = LinkChange(
            rate=Rate.from_mbps(number("rate_mbit")) if cells.get("rate_mbit") else None,
            delay=Delay(round(number("delay_ms") * 1e6)) if cells.get("delay_ms") else None,
            loss=_loss(cells["loss"], number) if cells.get("loss") else None,
        )
    except InvalidFileError:
        raise
    except StormbedError as error:
        raise InvalidFileError(f"{where}: {error.message}", hint=error.hint) from None
    if change == LinkChange():
        raise InvalidFileError(f"{where}: it changes nothing", hint="give a rate, a delay or a loss")
    return Entry(t_s, cells["link"], change, line)


def _loss(text: str, number: Callable[[str], float]) -> Loss:
    return Loss.parse(text) if "%" in text else Loss(number("loss"))


def write_csv(entries: Iterable[Entry]) -> str:
    """The text that `parse_csv` reads back."""
    lines = [",".join(COLUMNS)]
    for entry in entries:
        change = entry.change
        cells = [
            f"{entry.t_s:.6f}".rstrip("0").rstrip("."),
            entry.link,
            "" if change.rate is None else _plain(change.rate.mbps),
            "" if change.delay is None else _plain(change.delay.ms),
            "" if change.loss is None else _loss_cell(change.loss),
        ]
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _loss_cell(loss: Loss) -> str:
    return _plain(loss.ratio) if loss.burst is None else str(loss)


def _plain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


# --- mahimahi ---------------------------------------------------------------------------------------------


def read_mahimahi(path: str | Path) -> tuple[int, ...]:
    return parse_mahimahi(read_text(path, MAX_BYTES), str(path))


def parse_mahimahi(text: str, source: str = "trace") -> tuple[int, ...]:
    """The milliseconds of the sending opportunities; InvalidFileError names the line that is wrong."""
    times: list[int] = []
    for line, raw in enumerate(text.splitlines(), start=1):
        word = raw.partition("#")[0].strip()
        if not word:
            continue
        if not word.isascii() or not word.isdecimal() or len(word) > 12:
            raise InvalidFileError(
                f"{source}, line {line}: {word[:40]!r} is not a whole number of milliseconds",
                hint="a mahimahi trace has one a line",
            )
        times.append(int(word))
        if len(times) > 1 and times[-1] < times[-2]:
            raise InvalidFileError(f"{source}, line {line}: {times[-1]} ms comes after {times[-2]} ms")
    if not times or times[-1] == 0:
        raise InvalidFileError(f"{source}: it has no packet after 0 ms, so it has no duration")
    return tuple(times)


def mahimahi_rates(times_ms: Sequence[int], bin_s: float) -> tuple[tuple[float, Rate], ...]:
    """The mean rate of each stretch of `bin_s` of one pass: (when it begins, rate). The last may be short.

    As in mahimahi the pass ends with its last packet. A packet at t counts for the stretch that t ends in, so
    that a file of the one line `1` is 12 Mbit/s throughout. A stretch without packets is LEAST_RATE.
    """
    duration_ms = times_ms[-1]
    bin_ms = bin_s * 1000
    if bin_ms < 1:
        raise UsageError(f"a mahimahi trace has no stretches of {bin_s:g} s", hint="use at least 1ms")
    count = max(1, math.ceil(duration_ms / bin_ms - 1e-9))
    if count > _MOST_STRETCHES:
        raise UsageError(
            f"a mahimahi trace of {duration_ms / 1000:g} s has too many stretches of {bin_s:g} s",
            hint="use longer ones",
        )
    packets = [0] * count
    for t in times_ms:
        packets[min(count - 1, max(0, math.ceil(t / bin_ms - 1e-9) - 1))] += 1
    rates = []
    for k, n in enumerate(packets):
        length_s = (min(duration_ms, (k + 1) * bin_ms) - k * bin_ms) / 1000
        rates.append((k * bin_s, Rate(max(LEAST_RATE.bps, round(n * PACKET_BITS / length_s)))))
    return tuple(rates)


def mahimahi_to_csv(times_ms: Sequence[int], link: str, *, bin_s: float = 1.0) -> str:
    """One pass of a mahimahi trace as CSV, one line a stretch."""
    rates = mahimahi_rates(times_ms, bin_s)
    return write_csv(Entry(t, link, LinkChange(rate=rate), k + 2) for k, (t, rate) in enumerate(rates))


def csv_to_mahimahi(entries: Sequence[Entry], topology: Topology, direction: int, *, until_s: float) -> str:
    """The rates of one direction of a link as a mahimahi trace of `until_s`; delays and losses are left out.

    Before its first line the direction has its declared rate.
    """
    steps: list[tuple[float, int]] = [(0.0, topology.directed[direction].rate.bps)]
    for entry in entries:
        if entry.change.rate is not None and direction in select(topology, entry.link):
            steps.append((entry.t_s, entry.change.rate.bps))
    return "".join(f"{t}\n" for t in _opportunities(steps, until_s))


def _opportunities(steps: Sequence[tuple[float, int]], until_s: float) -> Iterator[int]:
    """The milliseconds at the end of which another whole packet has been earned."""
    credit, k = 0, 0  # in thousandths of a bit
    for ms in range(math.ceil(until_s * 1000 - 1e-9)):
        while k + 1 < len(steps) and steps[k + 1][0] * 1000 <= ms + 1e-9:
            k += 1
        credit += steps[k][1]
        while credit >= PACKET_BITS * 1000:
            credit -= PACKET_BITS * 1000
            yield ms + 1
