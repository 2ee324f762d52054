"""How the report's page looks: the live page's colours, light and dark, and a sheet for printing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LIGHT: Final = """
  color-scheme: light;
  --ground: #f3f5f7; --card: #ffffff; --ink: #17202a; --quiet: #566270; --line: #dce2e8; --focus: #1d6fb0;
  --bed: #e7ebef; --u0: #b6c2ce; --u1: #8fbfe6; --u2: #4594d1; --u3: #0f5c9e; --u4: #b95000;
  --down: #b3261e; --good: #0b6b4f; --warn: #8a5200; --black: #000000;
"""
_DARK: Final = """
  color-scheme: dark;
  --ground: #0e1318; --card: #161c23; --ink: #e5eaef; --quiet: #97a5b3; --line: #29323c; --focus: #7cb5ec;
  --bed: #222a33; --u0: #475563; --u1: #34678f; --u2: #4a9bd6; --u3: #9fd3fb; --u4: #ffab2e;
  --down: #ff7a70; --good: #5fd0a5; --warn: #f1b155; --black: #f2f5f8;
"""

LIGHT: Final[Mapping[str, str]] = {
    name: value.strip() for name, value in re.findall(r"(--[a-z0-9]+):([^;]+);", _LIGHT)
}
"""The colours of the light page by their variables, for a drawing that stands outside of any page."""

STYLE: Final = (
    f"""
:root {{{_LIGHT}  --font: system-ui, "DejaVu Sans", sans-serif; }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{_DARK}}} }}
:root[data-theme="dark"] {{{_DARK}}}
@media print {{ :root:root:root {{{_LIGHT}}} nav {{ display: none; }} .card {{ break-inside: avoid; }} }}
"""
    + """
* { box-sizing: border-box; }
html { background: var(--ground); scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 1060px; padding: 22px 20px 40px; color: var(--ink);
  font: 14px/1.5 var(--font);
  font-variant-numeric: tabular-nums; }
h1, h2, p, dl, dd { margin: 0; }
h1 { font-size: 22px; font-weight: 650; letter-spacing: -.01em; }
h2 { font-size: 15px; font-weight: 650; margin-bottom: 2px; }
a { color: var(--focus); text-underline-offset: 2px; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
header { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
header p { flex-basis: 100%; color: var(--quiet); }
nav { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 10px 0 14px; font-size: 13px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px;
  margin-bottom: 16px; }
.reading { color: var(--quiet); font-size: 13px; max-width: 88ch; margin-bottom: 10px; }
.chip { border: 1px solid currentColor; border-radius: 99px; padding: 1px 10px; font-size: 12px;
  font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--down);
  } .plain { color: var(--quiet); }
figure { margin: 0; overflow-x: auto; }
figure svg, figure img { display: block; width: 100%; min-width: 640px; height: auto; }
figure.map img { max-width: 900px; margin: 0 auto; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 8px 20px;
  margin-top: 6px; }
.facts dt { color: var(--quiet); font-size: 12px; } .facts dd { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.tall { max-height: 420px; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { font-weight: 500; font-size: 12px; color: var(--quiet); text-align: left; vertical-align: bottom;
  position: sticky; top: 0; background: var(--card); white-space: nowrap; }
th, td { padding: 3px 14px 3px 0; } tr { border-bottom: 1px solid var(--line); }
.n { text-align: right; white-space: nowrap; } th.n { white-space: normal; }
.name { white-space: nowrap; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px; }
pre { margin: 6px 0 0; padding: 10px 12px; overflow-x: auto; background: var(--ground);
  border: 1px solid var(--line);
  border-radius: 6px; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--quiet); font-size: 13px; }
.note { border-left: 3px solid var(--warn); padding-left: 10px; margin-top: 8px; }
.note.bad { border-color: var(--down); color: var(--ink); }
footer { color: var(--quiet); font-size: 12.5px; }
"""
)
