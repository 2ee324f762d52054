"""Packet sockets of another process, borrowed and closed; in a scratch network namespace, so it needs root."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.emulation.packet_sockets import borrow_packet_sockets, end_and_close

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this claim is UNVERIFIED here")
SOCKETS = 12
HOLDER = f"""
import socket, time
held = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range({SOCKETS})]
for one in held:
    one.bind(("lo", 0))
other = socket.socket()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process with packet sockets, and one of another kind."""
    argv = ["unshare", "--net", sys.executable, "-c", HOLDER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_only_packet_sockets_are_borrowed_and_belong_to_both(holder: subprocess.Popen[str]) -> None:
    gc.collect()  # what earlier tests have left to it is not closed in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    borrowed = borrow_packet_sockets(holder.pid)
    assert len(borrowed) == SOCKETS
    assert {one.family for one in borrowed} == {socket.AF_PACKET}
    borrowed[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 5000)
    again = borrow_packet_sockets(holder.pid)
    assert min(one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for one in again) == 10_000
    for one in (*borrowed, *again):
        one.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert holder.poll() is None


def test_a_holder_ends_and_its_sockets_are_closed(holder: subprocess.Popen[str]) -> None:
    with open(f"/proc/{holder.pid}/net/packet") as table:  # stays readable as long as the namespace has a file open
        assert len(table.read().splitlines()) == SOCKETS + 1
        assert end_and_close([holder.pid]) == SOCKETS
        assert holder.wait(timeout=10) == -9
        table.seek(0)
        assert len(table.read().splitlines()) == 1


def test_who_has_ended_already_does_no_harm(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert end_and_close([holder.pid]) == 0
