"""`testbed next-steps`: what to type while a testbed stands."""

from __future__ import annotations

import typer

from testbed.api import Testbed
from testbed.cli.output import print_table
from testbed.cli.select import NameOption
from testbed.emulation.page import page_url
from testbed.standing import standing


def register(app: typer.Typer) -> None:
    app.command("next-steps")(next_steps)


def next_steps(name: NameOption = None) -> None:
    """Print what to type next."""
    testbed = Testbed.attach(name)
    several = len(standing()) > 1
    # Verbs about a testbed take its name as their word; those about something in it take it as an option.
    word = f" {testbed.name}" if several else ""
    flag = f" --name {testbed.name}" if several else ""
    first, last = testbed.topology.site_names[0], testbed.topology.site_names[-1]
    peer = testbed.topology.site_names[testbed.topology.neighbours(0)[0]]
    typer.echo(f"{testbed.name} stands. Next:")  # the table's empty head is the empty line
    print_table(
        ("", ""),
        [
            (f"testbed status{word} --watch", "links, sites and iterations, live"),
            (
                page_url(testbed.run_dir) or f"testbed dashboard{word}",
                "the same as a page in the browser",
            ),
            (f"testbed exec {last}{flag} -- ping -c3 {testbed.sites[first].wan_ip}", "a command at a site"),
            (f"ssh -F {testbed.ssh_config} {last}", "the same door for ssh, scp and Fabric"),
            (f"testbed link set {first} {peer} --rate 20mbit{flag}", "change a link while it runs"),
            (f"testbed run quickstart{flag}", "train under two schedulers again"),
            ("testbed report", "the tables of the last run"),
            (testbed.info.prometheus_url, "Prometheus"),
            (f"testbed down {testbed.name}", "take it away"),
        ],
    )
