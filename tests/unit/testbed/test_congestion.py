"""How the kernel is brought to a congestion control, on the kernel itself.

`only_reno` shortens the machine's list while a test runs, and puts it back; all else happens in network namespaces
of the tests' own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.doctor import State, check_kernel, congestion_row
from testbed.emulation import congestion
from testbed.emulation.congestion import Congestion


def apart(program: str) -> str:
    """What a program prints in a network namespace of its own, where it may not extend the machine's list."""
    program = "from testbed.emulation import congestion as c\nfrom testbed.doctor import check_kernel\n" + program
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


def test_a_list_that_is_hidden_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(congestion, "ALLOWED", tmp_path / "hidden")
    assert congestion.allowed() == []
    assert not congestion.may_allow() and not congestion.allow("cubic")
    assert not congestion.ALLOWED.exists()


def test_only_what_differs_from_the_usual_is_a_gap() -> None:
    assert Congestion("cubic").gap() is None and Congestion("cubic", "inherited").gap() is None
    assert "not offer cubic" in (Congestion("reno").gap() or "")
    assert "routes" in (Congestion("cubic", "route").gap() or "")


@pytest.mark.usefixtures("only_reno")
def test_a_list_that_cannot_be_extended_is_left_to_the_routes() -> None:
    assert apart("print(c.may_allow(), c.allow('cubic'), c.apply('cubic').way)") == "False False route"
    assert congestion.allowed() == ["reno"]


@pytest.mark.usefixtures("only_reno")
def test_what_the_machine_allows_any_namespace_may_have_as_its_default() -> None:
    own = congestion.default()
    assert congestion.may_allow() and congestion.allow("cubic") and not congestion.allow("cubic")
    assert congestion.allowed() == ["reno", "cubic"]
    assert congestion.default() == own
    assert apart("print(c.apply('cubic').way, c.default())") == "default cubic"


@pytest.mark.usefixtures("only_reno")
def test_what_the_machine_itself_uses_a_new_namespace_has_already() -> None:
    own = congestion.default()
    assert apart(f"print(c.apply('{own}').way, c.default())") == f"inherited {own}"


@pytest.mark.usefixtures("only_reno")
def test_the_doctor_tells_what_up_would_do_and_does_none_of_it() -> None:
    row = next(row for row in check_kernel() if row.name == "congestion control")
    assert row.state is State.OK and "once `testbed up` has allowed it" in row.found
    assert congestion.allowed() == ["reno"]


@pytest.mark.usefixtures("only_reno")
def test_the_doctors_fix_for_a_container_works_on_its_machine() -> None:
    told = (
        "row = next(row for row in check_kernel() if row.name == 'congestion control')\n"
        "print(row.state.value, row.fix, sep='\\n')"
    )
    state, fix = apart(told).splitlines()
    assert state == "degraded"
    command = fix.removeprefix("on the machine itself: ")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=10)
    assert apart(told) == "ok"
    assert congestion.allowed() == ["reno", "cubic"], "extended, not replaced"


@pytest.mark.parametrize("scratch", [Congestion("reno"), Congestion("reno", "route"), Congestion("cubic", "route")])
def test_what_a_container_or_a_kernel_withholds_is_degraded_and_never_missing(scratch: Congestion) -> None:
    row = congestion_row(scratch, may_allow=False)
    assert row.state is State.DEGRADED and scratch.name in row.instead and row.fix
