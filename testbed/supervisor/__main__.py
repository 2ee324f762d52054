"""`python -m testbed.supervisor --run-dir DIR`: what `testbed.emulation.launch` starts in new namespaces."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from pathlib import Path

from testbed.emulation.rundir import RunDir, read_info
from testbed.events import EventLog
from testbed.runner import use_event_log
from testbed.supervisor.server import run_server
from testbed.supervisor.state import Supervisor
from topologies.errors import StormbedError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.supervisor", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = RunDir(parser.parse_args().run_dir)
    info = read_info(run_dir)
    if info is None:
        raise StormbedError(f"{run_dir.path} holds no testbed")
    events = EventLog(run_dir.events)
    use_event_log(events)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def supervisor_of(loop: asyncio.AbstractEventLoop) -> Supervisor:
        return Supervisor(run_dir, info, info.load_topology(), events, loop)

    run_server(supervisor_of, take_owner())
    return 0


def take_owner() -> int:
    """The pipe from the caller of `up`, which is the standard input, out of reach of what is started here."""
    owner = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return owner


if __name__ == "__main__":
    sys.exit(main())
