"""`python -m agents --site K --run-dir DIR`: the agent of site K."""

from __future__ import annotations

import argparse
from pathlib import Path

from agents.agent import Agent
from agents.config import Config
from agents.daemon import run_daemon
from topologies.errors import UsageError


def main() -> int:
    """Parse the command line and run the agent."""
    parser = argparse.ArgumentParser(prog="python -m agents", description="The agent of one site.")
    parser.add_argument("--site", type=int, required=True, help="index of the site in the topology, from 0")
    parser.add_argument("--run-dir", type=Path, required=True, help="directory of the testbed")
    arguments = parser.parse_args()

    def make() -> Agent:
        config = Config.load(arguments.run_dir)
        names = config.topology.site_names
        if not 0 <= arguments.site < len(names):
            raise UsageError(
                f"{config.topology.name} has no site {arguments.site}", hint=f"0 to {len(names) - 1}"
            )
        return Agent(config, arguments.site)

    return run_daemon(make, "agent")


if __name__ == "__main__":
    raise SystemExit(main())
