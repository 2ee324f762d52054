"""`testbed link show|set|down|up`: the WAN's links while the testbed stands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from testbed.cli.output import Format, FormatOption, mbps, print_json, print_table
from testbed.cli.select import NameOption, attach
from topologies.errors import UsageError
from topologies.units import Delay, Loss, Rate

Src = Annotated[str, typer.Argument(metavar="SRC", help="A site.")]
Dst = Annotated[str, typer.Argument(metavar="DST", help="Its neighbour.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Show and change links while the testbed stands.")
    group.command("show")(show)
    group.command("set")(set_)
    group.command("down")(down)
    group.command("up")(up)
    group.command("reset")(reset)
    app.add_typer(group, name="link")


def show(
    src: Annotated[str | None, typer.Argument(metavar="[SRC", show_default=False)] = None,
    dst: Annotated[str | None, typer.Argument(metavar="DST]", show_default=False)] = None,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show all links, those of one site, or one link: as configured now, and what they have carried."""
    testbed = attach(name, "link show")
    if src is not None:
        testbed.site(src)
    if src is not None and dst is not None:
        rows = testbed.link(src, dst).show()
    else:
        rows = [row for row in testbed.links() if src is None or src in (row["src"], row["dst"])]
    if format is Format.JSON:
        print_json({"name": testbed.name, "links": rows})
    else:
        print_table(COLUMNS, [table_row(row) for row in rows])


COLUMNS = ("from", "to", "state", "Mbit/s", "delay ms", "jitter ms", "loss %", "carried MB", "drops")


def table_row(row: dict[str, Any]) -> tuple[str, ...]:
    line = row["delay_line"] or {"drops": {}}
    return (
        row["src"],
        row["dst"],
        row["state"],
        mbps(row["rate_bps"]),
        f"{row['delay_s'] * 1e3:g}",
        f"{row['jitter_s'] * 1e3:g}",
        f"{row['loss_ratio'] * 100:g}",
        f"{row['counters']['bytes'] / 1e6:.1f}",
        str(row["counters"]["drops"] + sum(line["drops"].values())),
    )


def set_(
    src: Src,
    dst: Dst,
    rate: Annotated[str | None, typer.Option("--rate", help="For example 50mbit.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="One way, for example 20ms.")] = None,
    jitter: Annotated[str | None, typer.Option("--jitter", help="For example 2ms.")] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="For example 0.1%.")] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from SRC to DST.")] = False,
    name: NameOption = None,
) -> None:
    """Change a link, both directions unless --one-way. No packet is lost by the change itself."""
    if rate is delay is jitter is loss is None:
        raise UsageError("nothing to change", hint="give --rate, --delay, --jitter or --loss")
    # Units first: they are wrong or right whether or not a testbed is up.
    changes: dict[str, Any] = {
        "rate": rate and Rate.parse(rate),
        "delay": delay and Delay.parse(delay),
        "jitter": jitter and Delay.parse(jitter),
        "loss": loss and Loss.parse(loss),
    }
    attach(name, "link set").link(src, dst).set(one_way=one_way, **changes)


def down(src: Src, dst: Dst, name: NameOption = None) -> None:
    """Cut a link: both its switches see the port go down."""
    attach(name, "link down").link(src, dst).down()


def up(src: Src, dst: Dst, name: NameOption = None) -> None:
    """Mend a link that was cut."""
    attach(name, "link up").link(src, dst).up()


def reset(
    src: Annotated[str | None, typer.Argument(metavar="[SRC", show_default=False)] = None,
    dst: Annotated[str | None, typer.Argument(metavar="DST]", show_default=False)] = None,
    name: NameOption = None,
) -> None:
    """Put a link, or all of them, back to what the topology declares."""
    testbed = attach(name, "link reset")
    if src is not None and dst is not None:
        testbed.link(src, dst).reset()
    elif src is None:
        testbed.call("link_reset")
    else:
        raise UsageError(
            "a link has two ends", hint=f"testbed link reset {src} NEIGHBOUR, or no site for all"
        )
