"""What the pages are put together from: the frame, cards, tables, figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from testbed.report.figures import Figure
from testbed.report.html_style import STYLE


def page(title: str, body: Iterable[str]) -> str:
    """A whole page that asks nothing of the network; `body` is HTML already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def card(anchor: str, title: str, content: str) -> str:
    """A section; `content` is HTML already."""
    return f'<section class="card" id="{anchor}"><h2>{escape(title)}</h2>{content}</section>'


def figure_block(figure: Figure) -> str:
    return f'<p class="reading">{escape(figure.reading)}</p><figure>{figure.svg}</figure>'


def key(name: str, colour: str) -> str:
    """A scheduler's name with its colour."""
    return f'<span class="name"><span class="key" style="background:{colour}"></span>{escape(name)}</span>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Pairs of a name and what it is."""
    made = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows)
    return f'<dl class="facts">{made}</dl>' if made else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """Cells are HTML already; those of `numeric` columns stand to the right."""
    right = set(numeric)
    kind = [' class="n"' if k in right else "" for k in range(len(columns))]
    head = "".join(f'<th scope="col"{kind[k]}>{escape(name)}</th>' for k, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[k]}>{cell}</td>" for k, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
