"""`testbed calibrate [NAME]`: is the WAN what it is configured to be? Also how other verbs tell the
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from testbed.cli.output import Format, FormatOption, mbps, print_json, print_table, progress
from testbed.cli.select import NameArgument, attach
from topologies.errors import FidelityError

MOST_REASONS = 5


def register(app: typer.Typer) -> None:
    app.command("calibrate")(calibrate)


Force = Annotated[
    bool, typer.Option("--force", help="Even while a run measures on these links; its verdict tells it.")
]


def calibrate(
    name: NameArgument = None,
    force: Force = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Measure every link, all busy together and doubtful ones alone; exit 3 when one is not as configured."""
    from testbed.experiments.readiness import require_undisturbed

    testbed = attach(name, "calibrate")
    if not force:
        require_undisturbed(testbed.info, "calibrate")
    with progress() as say:
        fidelity: dict[str, Any] = testbed.calibrate(on_progress=say)
    if format is Format.JSON:
        print_json({"name": testbed.name, **fidelity})
    else:
        print_table(COLUMNS, [table_row(link) for link in fidelity["links"]])
        typer.echo("\n" + "\n".join(verdict_lines(fidelity)))
    require_in_band(fidelity)


COLUMNS = ("from", "to", "Mbit/s", "all busy", "alone", "ratio", "delay ms", "measured", "problems")


def table_row(link: Mapping[str, Any]) -> tuple[str, ...]:
    def rate(key: str) -> str:
        return "-" if link[key] is None else mbps(link[key])

    return (
        link["src"],
        link["dst"],
        rate("declared_bps"),
        rate("together_bps"),
        rate("alone_bps"),
        "-" if link["ratio"] is None else f"{link['ratio']:.3f}",
        f"{link['declared_delay_s'] * 1e3:g}",
        "-" if link["delay_s"] is None else f"{link['delay_s'] * 1e3:.2f}",
        "; ".join(link["problems"]),
    )


def verdict_lines(fidelity: Mapping[str, Any] | None) -> list[str]:
    """The verdict and what it rests on, for people."""
    if fidelity is None:
        return ["fidelity: not measured"]
    carried = fidelity["carried_bps"]
    total = (
        "" if carried is None else f" ({mbps(carried)} of {mbps(fidelity['declared_bps'])} Mbit/s, all busy)"
    )
    lines = [f"fidelity: {fidelity['verdict']}{total}"]
    reasons = fidelity["reasons"]
    lines += [f"  {reason}" for reason in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        lines.append(f"  and {len(reasons) - MOST_REASONS} more; `testbed calibrate` measures again")
    return lines


def require_in_band(fidelity: Mapping[str, Any] | None) -> None:
    """Raise FidelityError when a link is not what was declared. A machine short of CPU only with all links
    busy at once is no reason: a run's own verdict tells whether that mattered."""
    if fidelity is not None and fidelity["verdict"] == "degraded":
        reasons = fidelity["reasons"]
        raise FidelityError(
            f"the network is not what was declared: {reasons[0]}"
            + (f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""),
            hint="try again on an idle machine, or lower rates with `up --scale 0.5`",
        )
