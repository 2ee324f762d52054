"""How the kernel is brought to a congestion control, on the kernel itself: settings are read, and written only in
network namespaces of the tests' own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.doctor import State, machine
from testbed.emulation import congestion
from testbed.emulation.congestion import Congestion

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this claim is UNVERIFIED here")


def apart(program: str) -> str:
    """What a program prints in a network namespace of its own, where it may not extend the machine's list."""
    program = "from testbed.emulation import congestion as c\nfrom testbed.doctor import machine\n" + program
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_what_the_kernel_lacks_gives_reno() -> None:
    assert congestion.choose("nonesuch") == "reno"
    assert congestion.choose("reno") == "reno"


def test_what_is_allowed_already_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "allowed"
    listed.write_text("reno bbr\n")
    monkeypatch.setattr(congestion, "ALLOWED", listed)
    assert not congestion.allow("bbr")
    assert listed.read_text() == "reno bbr\n"
    assert congestion.allow("cubic")
    assert listed.read_text() == "reno bbr cubic"
    monkeypatch.setattr(congestion, "ALLOWED", tmp_path)
    with pytest.raises(OSError):
        congestion.allowed()


def test_only_what_differs_from_the_usual_is_a_gap() -> None:
    assert Congestion("cubic").gap() is None
    assert "no cubic" in (Congestion("reno").gap() or "")
    assert "routes" in (Congestion("cubic", by_route=True).gap() or "")


@needs_root
@pytest.mark.usefixtures("only_reno")
def test_a_list_that_may_not_be_extended_is_left_to_the_routes() -> None:
    assert apart("print(c.may_allow(), c.allow('cubic'), c.apply('cubic'))") == (
        "False False Congestion(name='cubic', by_route=True)"
    )
    assert congestion.allowed() == ["reno"]


@needs_root
@pytest.mark.usefixtures("only_reno")
def test_what_the_machine_allows_any_namespace_may_have_as_its_default() -> None:
    own = congestion.DEFAULT.read_text()
    assert congestion.may_allow() and congestion.allow("cubic") and not congestion.allow("cubic")
    assert congestion.allowed() == ["reno", "cubic"]
    assert congestion.DEFAULT.read_text() == own
    assert apart("print(c.apply('cubic'), c.DEFAULT.read_text())") == (
        "Congestion(name='cubic', by_route=False) cubic"
    )


@needs_root
@pytest.mark.usefixtures("only_reno")
def test_the_doctor_tells_what_up_would_do_and_does_none_of_it() -> None:
    row = machine.check_congestion_control()
    assert row.state is State.OK and "once `testbed up` has allowed it" in row.found
    assert congestion.allowed() == ["reno"]


@needs_root
@pytest.mark.usefixtures("only_reno")
def test_the_doctors_fix_for_a_container_works_on_its_machine() -> None:
    told = "row = machine.check_congestion_control(); print(row.state.value, row.fix, sep='\\n')"
    state, fix = apart(told).splitlines()
    assert state == "degraded"
    command = fix.removeprefix("on the machine itself: ")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=10)
    assert apart(told) == "ok"


def test_a_kernel_without_cubic_is_degraded_and_never_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "choose", lambda wanted: "reno")
    row = machine.check_congestion_control()
    assert row.state is State.DEGRADED and "reno" in row.instead and "modprobe" in row.fix
