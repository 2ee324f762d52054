"""`testbed link show|test|set|vary|down|up|blackhole|reset`: the WAN's links while the testbed stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.api import Testbed
from testbed.cli.calibrate import Force
from testbed.cli.output import Format, FormatOption, mbps, print_json, print_table, progress
from testbed.cli.select import NameOption, attach
from topologies.errors import UsageError
from topologies.units import Delay, Loss, Rate

Src = Annotated[str, typer.Argument(metavar="SRC", help="A site.")]
Dst = Annotated[str, typer.Argument(metavar="DST", help="Its neighbour.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Show and change links while the testbed stands.")
    group.command("show")(show)
    group.command("test")(test)
    group.command("set")(set_)
    group.command("vary")(vary)
    group.command("down")(down)
    group.command("up")(up)
    group.command("blackhole")(blackhole)
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
        f"{row['loss_ratio'] * 100:g}" + (f" burst {row['loss_burst']:g}" if row["loss_burst"] else ""),
        f"{row['counters']['bytes'] / 1e6:.1f}",
        str(row["counters"]["drops"] + sum(line["drops"].values())),
    )


def test(
    src: Annotated[str, typer.Argument(metavar="SRC", help="A site.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="Any other site.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long TCP is measured.")] = 2.0,
    force: Force = False,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Measure from host to host through the WAN: TCP's rate, the round trip, the loss.

    Neighbours over their link, others, and neighbours whose link is down, the way that packets go now.
    """
    from testbed.experiments.readiness import require_undisturbed

    testbed = attach(name, "link test")
    for site in (src, dst):
        testbed.site(site)
    if not force:
        require_undisturbed(testbed.info, "link test")
    with progress() as say:
        # It says nothing while it measures, so it is waited for as long as it is given there.
        limit = 65 + 4 * min(max(0.0, seconds), 60.0)
        found = testbed.call("link_test", on_progress=say, timeout=limit, src=src, dst=dst, seconds=seconds)
    if format is Format.JSON:
        print_json({"name": testbed.name, **found})
        return
    ratio = found["carried_bps"] / found["least_rate_bps"]
    rtt = "none" if found["rtt_s"] is None else f"{found['rtt_s'] * 1e3:.2f} ms"
    back = "" if found["back_path"] == found["path"][::-1] else f" (back: {' > '.join(found['back_path'])})"
    typer.echo(
        f"{' > '.join(found['path'])}{back}\n"
        f"  rate  {mbps(found['carried_bps'])} Mbit/s of TCP payload, {ratio:.3f} of the slowest link's "
        f"{mbps(found['least_rate_bps'])}\n"
        f"  rtt   {rtt} (declared {found['declared_rtt_s'] * 1e3:g} ms)\n"
        f"  loss  {found['loss_ratio']:.2%} of {found['probes']} datagrams "
        f"(declared {found['declared_loss_ratio']:.2%}), {found['back_loss_ratio']:.2%} on the way back"
    )


def set_(
    src: Src,
    dst: Dst,
    rate: Annotated[str | None, typer.Option("--rate", help="For example 50mbit.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="One way, for example 20ms.")] = None,
    jitter: Annotated[str | None, typer.Option("--jitter", help="For example 2ms.")] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="For example 0.1%, or '1% burst 8' for 8 in a row on average.")
    ] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from SRC to DST.")] = False,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
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
    testbed = attach(name, "link set")
    testbed.link(src, dst).set(one_way=one_way, **changes)
    said = ", ".join(f"{key} {value}" for key, value in changes.items() if value is not None)
    tell(testbed, format, f"{between(src, dst, one_way)}: {said}", src, dst, one_way=one_way)


def tell(
    testbed: Testbed,
    format: Format,
    text: str,
    src: str | None = None,
    dst: str | None = None,
    *,
    one_way: bool = False,
) -> None:
    """What was done: a line for people; for programs the links that it was done to, as they are now."""
    if format is Format.TEXT:
        typer.echo(text)
        return
    rows = testbed.links()
    if src is not None:
        ends = {(src, dst)} if one_way else {(src, dst), (dst, src)}
        rows = [row for row in rows if (row["src"], row["dst"]) in ends]
    print_json({"name": testbed.name, "links": rows})


def between(src: str, dst: str, one_way: bool = False) -> str:
    """A link as the verbs call it: `dc1 > dc2` is one direction, `dc1 - dc2` both."""
    return f"{src} {'>' if one_way else '-'} {dst}"


def vary(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="netstorm, uniform, walk or trace.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", help="For example 10s.")] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="A range, for example 20mbit..155mbit.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Of kind trace: a CSV or mahimahi file.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws.")] = 1,
    stop: Annotated[bool, typer.Option("--stop", help="End it; links are what they were before.")] = False,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Have links change by themselves until --stop, as `dynamics` of an experiment does.

    Takes the place of what `up --dynamics` or an earlier `link vary` began."""
    if stop == (kind is not None):
        raise UsageError(
            "say either what is to happen or --stop", hint="testbed link vary uniform --every 10s"
        )
    testbed = attach(name, "link vary")
    if stop:
        played = testbed.call("dynamics_stop", owner="standing")
        if format is Format.JSON:
            print_json({"name": testbed.name, "playing": False, **played})
        else:
            typer.echo(f"{changes_made(played['steps'])}; the links are what they were before")
        return
    given = {"kind": kind, "every": every, "rate": rate, "path": trace and str(trace.absolute())}
    dynamics = {key: value for key, value in given.items() if value is not None}
    began = testbed.call("dynamics_start", dynamics=dynamics, seed=seed, owner="standing")
    if format is Format.JSON:
        print_json({"name": testbed.name, "playing": True, "dynamics": dynamics, "seed": seed, **began})
    else:
        typer.echo("the links change; `testbed link vary --stop` ends it")


def changes_made(steps: int) -> str:
    return "1 change was made" if steps == 1 else f"{steps} changes were made"


def blackhole(
    src: Src,
    dst: Dst,
    off: Annotated[bool, typer.Option("--off", help="Carry again.")] = False,
    both: Annotated[bool, typer.Option("--both", help="The other direction too.")] = False,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Drop everything from SRC to DST in silence: no switch notices, unlike `down`."""
    testbed = attach(name, "link blackhole")
    testbed.link(src, dst)
    testbed.call("blackhole", src=src, dst=dst, on=not off, both=both)
    said = "carries again" if off else "drops everything in silence"
    tell(testbed, format, f"{between(src, dst, not both)}: {said}", src, dst, one_way=not both)


def down(src: Src, dst: Dst, name: NameOption = None, format: FormatOption = Format.TEXT) -> None:
    """Cut a link: both its switches see the port go down."""
    testbed = attach(name, "link down")
    testbed.link(src, dst).down()
    tell(testbed, format, f"{between(src, dst)}: down", src, dst)


def up(src: Src, dst: Dst, name: NameOption = None, format: FormatOption = Format.TEXT) -> None:
    """Mend a link that was cut."""
    testbed = attach(name, "link up")
    testbed.link(src, dst).up()
    tell(testbed, format, f"{between(src, dst)}: up", src, dst)


def reset(
    src: Annotated[str | None, typer.Argument(metavar="[SRC", show_default=False)] = None,
    dst: Annotated[str | None, typer.Argument(metavar="DST]", show_default=False)] = None,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Put a link, or all of them, back to what the topology declares."""
    testbed = attach(name, "link reset")
    if src is not None and dst is not None:
        testbed.link(src, dst).reset()
        tell(testbed, format, f"{between(src, dst)}: as declared", src, dst)
    elif src is None:
        testbed.call("link_reset")
        tell(testbed, format, "all links: as declared")
    else:
        raise UsageError(
            "a link has two ends", hint=f"testbed link reset {src} NEIGHBOUR, or no site for all"
        )
