"""`python -m controller`: run the controller of one testbed until it is told to end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from prometheus_client import CollectorRegistry

from controller.api import Api
from controller.fabric import Fabric, poll_seconds
from topologies.errors import CannotHonourError, StormbedError, UsageError
from topologies.load import load_topology

LOG = logging.getLogger("controller")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    try:
        _log_to(arguments.log, verbose=arguments.verbose)
    except OSError as error:
        problem = UsageError(f"cannot write the log {arguments.log}: {error.strerror or error}")
        return _fail(problem, log=None)
    try:
        openflow, http = _address(arguments.openflow, "--openflow"), _address(arguments.http, "--http")
        fabric = Fabric(load_topology(arguments.topology))
        _claim(*openflow)
        api = Api(fabric, *http, CollectorRegistry())
    except StormbedError as error:
        return _fail(error, arguments.log)
    _end_on_signals()
    api.start()
    # Imported only now: parsing a file and reporting a taken port need no OpenFlow engine.
    from controller.app import ENGINE, serve

    LOG.info("%s under %s; OpenFlow on %s", fabric.topology.name, ENGINE, arguments.openflow)
    LOG.info("HTTP on %s", arguments.http)
    rules = sum(len(session.wanted) for _, _, session in fabric.switches())
    serve(fabric, *openflow, poll_s=arguments.poll_seconds or poll_seconds(rules))
    ended = StormbedError(f"the OpenFlow listener on {arguments.openflow} ended", hint="see the log")
    return _leave(_fail(ended, arguments.log))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m controller", description="The SDN controller of one testbed."
    )
    parser.add_argument("--topology", required=True, help="a topology file, or a name from the library")
    parser.add_argument(
        "--openflow", default="127.0.0.1:6653", metavar="HOST:PORT", help="listen for switches here"
    )
    parser.add_argument(
        "--http", default="127.0.0.1:8080", metavar="HOST:PORT", help="serve /health and others here"
    )
    parser.add_argument("--log", metavar="FILE", help="write the log here instead of standard error")
    parser.add_argument(
        "--poll-seconds", type=float, help="how often switches are read again; by their rules when left out"
    )
    parser.add_argument("--verbose", action="store_true", help="log every message")
    return parser.parse_args(argv)


def _log_to(file: str | None, *, verbose: bool) -> None:
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for engine in ("os_ken", "ryu"):
        logging.getLogger(engine).setLevel(logging.INFO if verbose else logging.WARNING)


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{option} {text!r} is not HOST:PORT", hint=f"for example {option} 127.0.0.1:6653")
    return host, int(port)


def _claim(host: str, port: int) -> None:
    """Find out whether the OpenFlow address is free: the engine itself would only log that it is not."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise CannotHonourError(
            f"cannot listen for switches on {host}:{port}: {error.strerror or error}",
            hint="is another controller running there? choose another address with --openflow",
        ) from None


def _end_on_signals() -> None:
    def end(number: int, _: FrameType | None) -> None:
        # The switches keep their rules, so traffic goes on.
        LOG.info("ending on %s", signal.Signals(number).name)
        _leave(0 if number == signal.SIGTERM else 130)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _leave(code: int) -> NoReturn:
    """End the process without the engine's threads, which wait for connections without a deadline."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _fail(error: StormbedError, log: str | None) -> int:
    if log:  # without a file the log goes to standard error, where the next line tells it
        LOG.error("%s", error)
    sys.stderr.write(f"error: {error}\n")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
