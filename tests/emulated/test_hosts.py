"""Machines and containers whose settings are against a testbed: it comes up all the same, and says what differs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.emulation import congestion
from testbed.emulation.waiting import wait_for
from tests.emulated.conftest import Bring, Site

pytestmark = pytest.mark.emulated

TAKE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
peer, _ = listener.accept()
print(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\\0").decode())
"""
SEND = """
import socket, sys
sock = socket.socket()
for name in sys.argv[2:]:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
sock.connect((sys.argv[1], 5000))
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\\0").decode())
"""


def congestion_controls(testbed: str, *chosen: str) -> tuple[str, str]:
    """What both ends of a connection across the WAN of a pair use.

    Args:
        chosen: what the end that connects has chosen before, if anything.
    """
    taker = Site(testbed, "dc2").start_python(TAKE, "10.0.0.2")
    assert taker.stdout is not None and taker.stdout.readline() == "ready\n"
    sender = Site(testbed, "dc1").python(SEND, "10.0.0.2", *chosen)
    return sender.strip(), taker.communicate(timeout=60)[0].strip()


@pytest.fixture
def container(
    only_reno: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Runs a command of ours in a network namespace like a container's, which cannot extend the machine's list."""
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path / "run"))
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    enter = ["nsenter", "--target", str(holder.pid), "--net", "--"]

    def run(*argv: str) -> str:
        done = subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=240, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    own, its = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{holder.pid}/ns/net")
    try:
        wait_for(lambda: its.readlink() != own, "a network namespace", 10)
        run("ip", "link", "set", "dev", "lo", "up")
        yield run
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.usefixtures("only_reno")
def test_a_machine_that_allows_sites_only_reno_allows_them_cubic_from_up_on(bring: Bring) -> None:
    told: list[str] = []
    testbed = bring("pair", on_progress=told.append)
    assert sum("cubic is now allowed" in line for line in told) == 1
    assert congestion.allowed() == ["reno", "cubic"]
    assert testbed.info.limits == ()
    assert testbed.site("dc1").run("cat", str(congestion.DEFAULT)).strip() == "cubic"
    assert congestion_controls(testbed.name) == ("cubic", "cubic")
    assert congestion_controls(testbed.name, "reno") == ("reno", "cubic"), "a program chooses for itself"
    again: list[str] = []
    bring("pair", on_progress=again.append)
    assert not any("allowed" in line for line in again)


def test_a_container_that_cannot_allow_anything_has_cubic_across_the_wan(
    container: Callable[..., str], unique_name: Callable[[], str]
) -> None:
    name, command = unique_name(), [sys.executable, "-m", "testbed"]
    said = container(*command, "up", "pair", "--name", name, "--no-page")
    try:
        assert "does not let sites default to cubic" in said
        assert Site(name, "dc1").run("cat", str(congestion.DEFAULT)).strip() != "cubic"
        assert congestion_controls(name) == ("cubic", "cubic")
        assert congestion_controls(name, "reno") == ("cubic", "cubic"), "said so: routes override a program"
        assert "completed" in container(*command, "run", "tiny-pair", "--name", name)
    finally:
        container(*command, "down", name)
    assert congestion.allowed() == ["reno"]
    assert "cubic, set on the routes" in container(*command, "doctor", "--quick")


def test_a_kernel_without_the_wanted_one_uses_reno_and_says_so(
    bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(congestion, "WANTED", "nonesuch")
    testbed = bring("pair")
    assert [limit for limit in testbed.info.limits if "does not offer cubic" in limit]
    assert congestion_controls(testbed.name) == ("reno", "reno")
