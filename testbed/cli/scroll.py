"""A picture that may be taller than the terminal: the part that shows, and the keys that move it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style

QUIT: Final = ("q", "Q", "\x03")
_STEPS: Final = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1}
_PAGES: Final = {"\x1b[5~": -1, "b": -1, "\x1b[6~": 1, " ": 1}
_HOME: Final = ("\x1b[H", "\x1b[1~", "g")
_END: Final = ("\x1b[F", "\x1b[4~", "G")


@dataclass
class Scroll:
    """How far down the picture has been moved. `lines` and `height` are those of the last drawing."""

    top: int = 0
    lines: int = 0
    height: int = 1

    def press(self, key: str) -> bool:
        """Move as a key says; tells whether it is one of those that move."""
        page = max(1, self.height - 2)
        if key in _STEPS:
            self.top += _STEPS[key]
        elif key in _PAGES:
            self.top += _PAGES[key] * page
        elif key in _HOME:
            self.top = 0
        elif key in _END:
            self.top = self.lines
        else:
            return False
        # Against the lines as they are known; a picture that shrinks is caught when it is drawn.
        self.top = max(0, min(self.top, max(0, self.lines - page)))
        return True


@dataclass(frozen=True)
class Window:
    """The part of a picture that fits so many lines, the last of which tells which part it is.

    Args:
        picture: drawn at the terminal's full width.
        height: of the terminal.
        scroll: where the part begins; told how tall the picture is.
    """

    picture: RenderableType
    height: int
    scroll: Scroll

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.picture, options.update(height=None), pad=False)
        self.scroll.lines, self.scroll.height = len(lines), self.height
        room = max(1, self.height - 1)
        top = max(0, min(self.scroll.top, len(lines) - room))
        shown = lines[top : top + room]
        for line in shown:
            yield from line
            yield Segment.line()
        place = ""
        if len(lines) > room:
            place = f"lines {top + 1} to {top + len(shown)} of {len(lines)}, "
        keys = "arrows, space and b move, q ends"
        yield Segment(f"{place}{keys}"[: options.max_width], Style(dim=True))
