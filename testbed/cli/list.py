"""`testbed list`: the testbeds that stand on this machine."""

from __future__ import annotations

import time

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("list")(list_)


def list_(format: FormatOption = Format.TEXT) -> None:
    """List the testbeds that are up."""
    from testbed.standing import standing

    infos = standing()
    now = time.time()
    if format is Format.JSON:
        rows = [
            {
                "name": info.name,
                "topology": info.topology["name"],
                "sites": len(info.sites),
                "up_s": round(now - info.created_s, 1),
                "run_dir": str(info.run_dir),
            }
            for info in infos
        ]
        print_json({"testbeds": rows})
    elif not infos:
        typer.echo("no testbed is up; try: testbed up netstorm-9")
    else:
        print_table(
            ("name", "topology", "sites", "up", "files"),
            [
                (
                    info.name,
                    info.topology["name"],
                    len(info.sites),
                    age(time.time() - info.created_s),
                    info.run_dir,
                )
                for info in infos
            ],
        )


def age(seconds: float) -> str:
    """A time span for people: 42s, 3m10s, 2h05m."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
