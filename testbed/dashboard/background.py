"""A standing testbed's page by a process of its own, from `up` until the testbed ends."""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from testbed.emulation.page import page_url, write_record
from topologies.errors import StormbedError

PORT: Final = 8800
LOG: Final = "page.log"
START_S: Final = 30.0
# Whoever trains on this machine comes first.
NICE: Final = 5


def ensure(name: str, run_dir: Path, supervisor: int) -> str:
    """Have the page of a testbed served; where it is already, that is enough.

    Args:
        name: the testbed's.
        run_dir: its directory; the page's log goes there.
        supervisor: the process whose end ends the page, by its id here.

    Returns:
        the page's address, on loopback: port 8800, or another where that one is taken.

    Raises:
        StormbedError: it could not be served; the message has its last words.
    """
    url = page_url(run_dir)
    if url is not None:
        return url
    words = [sys.executable, "-m", "testbed.dashboard.background", name, str(run_dir), str(supervisor)]
    with (run_dir / LOG).open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    assert process.stdout is not None
    with process.stdout as said:
        ready, _, _ = select.select([said], [], [], START_S)
        url = said.readline().decode().strip() if ready else ""
    if url:
        return url
    process.kill()
    process.wait()
    last = (run_dir / LOG).read_text(errors="replace", encoding="utf-8").strip().splitlines()[-1:]
    raise StormbedError(f"the page is not served: {last[0] if last else f'no answer within {START_S:g} s'}")


def main() -> None:
    """`python -m testbed.dashboard.background NAME RUN_DIR SUPERVISOR`: prints the address once it answers."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("supervisor", type=int)
    asked = parser.parse_args()
    # Taken before anything else: a testbed that ends meanwhile is not missed.
    supervisor = os.pidfd_open(asked.supervisor)
    os.nice(NICE)

    from testbed.api import Testbed
    from testbed.dashboard.live import LiveSource
    from testbed.dashboard.server import LOOPBACK, application, serve_near

    def watch() -> None:
        select.select([supervisor], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    def ready(address: str) -> None:
        write_record(asked.run_dir, address)
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        # Whoever started this has read it and goes on; nothing more is said.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    app = application(None, LiveSource(Testbed.attach(asked.name)), LOOPBACK)
    threading.Thread(target=watch, name="supervisor", daemon=True).start()
    serve_near(app, LOOPBACK[0], PORT, ready)


if __name__ == "__main__":
    main()
