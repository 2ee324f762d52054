"""The ground of every figure: vector SVG that takes its colours from the page, light or dark.

Figures are drawn with stand-in colours. `to_svg` puts the page's CSS variables in their place, so that one
drawing serves both themes, and prefixes every id, so that several drawings can stand in one page.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from agents.planning.registry import Style, scheduler_style
from testbed.experiments.manifest import Manifest
from testbed.report.html_style import LIGHT
from topologies.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

P = ParamSpec("P")
R = TypeVar("R")

WIDTH_IN: Final = 9.0

# Stand-ins, none of which a scheduler may have as its own colour.
INK: Final = "#010203"
QUIET: Final = "#010204"
LINE: Final = "#010205"
BED: Final = "#010206"
GOOD: Final = "#010207"
WARN: Final = "#010208"
DOWN: Final = "#010209"
CARD: Final = "#01020a"
BLACK: Final = "#01020b"
"""For a scheduler shown in black, which would be lost on a dark page; SVG leaves its own default, black, unsaid."""
LEVELS: Final = ("#010210", "#010211", "#010212", "#010213", "#010214")
"""A link's use, from idle to full, in the colours of the live page."""

_VARIABLES: Final[Mapping[str, str]] = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    LINE: "var(--line)",
    BED: "var(--bed)",
    GOOD: "var(--good)",
    WARN: "var(--warn)",
    DOWN: "var(--down)",
    CARD: "var(--card)",
    **{level: f"var(--u{number})" for number, level in enumerate(LEVELS)},
    BLACK: "var(--black)",
}
_UNKNOWN: Final = Style("#7a5195", "h")

_RC: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": QUIET,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.color": LINE,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "figure.facecolor": "none",
    "savefig.transparent": True,
    "lines.linewidth": 1.8,
    "path.simplify_threshold": 0.2,
}


@dataclass(frozen=True)
class Figure:
    """A drawing of the page: `name` is its anchor, `reading` says in words how to read it."""

    name: str
    title: str
    reading: str
    svg: str


@dataclass(frozen=True)
class Look(Style):
    """A scheduler's style beside others of the same one: `variant` counts these, 0 is the first.

    Colour and marker stay those of the family; what tells its members apart is the line and whether marks are hollow.
    A dashed line is no scheduler's: it is the bound's.
    """

    variant: int = 0

    @property
    def line(self) -> str:
        return ("-", ":", "-.")[self.variant % 3]

    @property
    def hollow(self) -> bool:
        return self.variant % 2 == 1

    @property
    def marks(self) -> dict[str, Any]:
        """What matplotlib is to be told of colour and marker."""
        face, edge = (CARD, self.colour) if self.hollow else (self.colour, CARD)
        return {
            "color": self.colour, "marker": self.marker, "markerfacecolor": face, "markeredgecolor": edge,
            "markeredgewidth": 1.6 if self.hollow else 1.0,
        }  # fmt: skip


def looks_of(shown: Iterable[str], manifest: Manifest) -> dict[str, Look]:
    """The looks of all schedulers of a figure: no two are alike, up to six of one family."""
    found: dict[str, Look] = {}
    families: dict[Style, int] = {}
    for name in dict.fromkeys(shown):
        style = style_of(name, manifest)
        variant = families.get(style, 0)
        families[style] = variant + 1
        found[name] = Look(style.colour, style.marker, variant)
    return found


def style_of(shown: str, manifest: Manifest) -> Style:
    """Colour and marker of a scheduler as it is shown: `netstorm`, `netstorm/2000000`, or a label of the
    experiment's own.
    """
    base = shown.split("/", 1)[0]
    named = {
        entry["label"]: entry["name"]
        for entry in manifest.experiment.get("schedulers", ())
        if isinstance(entry, dict) and entry.get("label")
    }
    for name in (named.get(base), base):
        if name is None:
            continue
        try:
            style = scheduler_style(name)
        except UsageError:
            continue  # a scheduler of a package that is not installed here
        return replace(style, colour=BLACK) if style.colour == "#000000" else style
    return _UNKNOWN


def themed(draw: Callable[P, R]) -> Callable[P, R]:
    """A function that draws, under the page's settings: matplotlib takes them when a thing is added."""

    @functools.wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        with mpl.rc_context(dict(_RC)):
            return draw(*args, **kwargs)

    return within


def drawing(height_in: float, rows: int = 1, **options: Any) -> tuple[Drawing, list[Axes]]:
    """An empty drawing of the page's width, and its axes from top to bottom; within `themed`."""
    from matplotlib.figure import Figure as Drawing

    made = Drawing(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = made.subplots(rows, 1, squeeze=False, **options)
    return made, [row[0] for row in axes]


def to_svg(made: Drawing, name: str, label: str) -> str:
    """The drawing as an `<svg>` element for a page that defines the variables.

    Args:
        made: what to draw.
        name: prefix of its ids, unique in the page.
        label: what somebody who does not see it is told.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    # The salt makes the ids, and so the whole page, the same each time.
    with mpl.rc_context({**_RC, "svg.hashsalt": name}):
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: _VARIABLES.get(found[0], found[0]), text)
    text = re.sub(r'(?<=\sd=")[^"]+', lambda found: _shorten(found[0]), text)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: ([0-9.]+)px 'DejaVu Sans'(, [^;\"]*)?", r"font: \1px var(--font)", text)
    head = f'<svg role="img" aria-label="{escape(label, quote=True)}"'
    # The page decides the width; the height follows from the view box.
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    return head + opening.removeprefix("<svg") + ">" + rest.strip()


def standalone(svg: str) -> str:
    """A figure as a file of its own: the light page's colours on its card's white, nothing left to a page."""
    coloured = re.sub(r"var\((--[a-z0-9]+)\)", lambda found: _OUTSIDE[found[1]], svg)
    opening, rest = coloured.split(">", 1)
    ground = f'<rect width="100%" height="100%" fill="{LIGHT["--card"]}"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{opening}>{ground}{rest}\n'


_OUTSIDE: Final = {**LIGHT, "--font": "'DejaVu Sans', Verdana, sans-serif"}
_RECTANGLE: Final = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4 (?:L \1 \2 )?z")


def _shorten(path: str) -> str:
    """A path with a hundredth of a point's precision and rectangles in few words: a third of the bytes."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), path)
    return _RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", " ".join(rounded.split()))
