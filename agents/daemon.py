"""How agent and coordinator run as processes: until a signal, with their reason when they cannot start."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Protocol

from topologies.errors import StormbedError

log = logging.getLogger(__name__)


class Daemon(Protocol):
    """What can be run."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def run_daemon(make: Callable[[], Daemon], name: str, *, until_stdin_closes: bool = False) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status. Logs to stderr.

    Args:
        until_stdin_closes: end also when stdin, a pipe, has no writer left: the process that started this one
            is gone.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {name} %(levelname)s %(message)s"
    )
    try:
        asyncio.run(_run(make, name, until_stdin_closes))
    except StormbedError as error:
        log.error("%s", error)
        return error.exit_code
    except OSError as error:
        log.error("cannot start: %s", error)
        return 1
    return 0


async def _run(make: Callable[[], Daemon], name: str, until_stdin_closes: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        stdin = sys.stdin.fileno()

        def read() -> None:
            if not os.read(stdin, 4096):
                loop.remove_reader(stdin)
                stop.set()

        loop.add_reader(stdin, read)
    daemon = make()
    await daemon.start()
    # What exists now stays; walking it again and again would only interrupt the traffic.
    gc.collect()
    gc.freeze()
    log.info("%s is ready", name)
    await stop.wait()
    await daemon.close()
