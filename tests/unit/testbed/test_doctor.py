"""The doctor's rows. What it tries on the kernel runs for real, in scratch namespaces, and needs root."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import doctor, sites
from testbed.doctor import KERNEL_FEATURES, Check, State, machine
from testbed.doctor.trial import judge_tcp
from testbed.emulation import congestion, possible, sysctls
from testbed.emulation.congestion import Congestion
from testbed.emulation.environment import missing_capabilities
from testbed.supervisor.boot import environment_gaps
from topologies.errors import CannotHonourError
from topologies.load import load_topology

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this claim is UNVERIFIED here")
ALL_WORK = dict.fromkeys(KERNEL_FEATURES, "")


def states(rows: list[Check]) -> dict[str, State]:
    return {row.name: row.state for row in rows}


def test_a_kernel_with_everything_gives_one_row() -> None:
    assert states(doctor.kernel_rows(ALL_WORK)) == {"kernel": State.OK}


def test_what_can_be_replaced_is_degraded_and_says_by_what() -> None:
    rows = doctor.kernel_rows(ALL_WORK | {"netem": "qdisc kind is unknown"})
    assert states(rows) == {"kernel": State.OK, "kernel netem": State.DEGRADED}
    assert "delay line" in rows[1].instead
    assert doctor.fit(rows)


def test_what_cannot_be_replaced_is_missing() -> None:
    rows = doctor.kernel_rows(ALL_WORK | {"htb": "qdisc kind is unknown"})
    assert states(rows)["kernel htb"] is State.MISSING
    assert not doctor.fit(rows)


def test_every_row_that_is_not_ok_says_what_follows() -> None:
    nothing_works = dict.fromkeys(KERNEL_FEATURES, "no")
    for row in doctor.kernel_rows(nothing_works):
        assert row.fix or row.instead


@pytest.mark.parametrize(
    ("stat", "ratio"),
    [
        ("cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1\n", 0.1),
        ("cpu  0 0 0 0 0 0 0 0 0 0\n", 0.0),
        ("cpu  50 0 50 900 0 0 0 0 0 0\n", 0.0),
    ],
)
def test_steal_ratio(stat: str, ratio: float) -> None:
    assert doctor.steal_ratio(stat) == pytest.approx(ratio)


def test_no_root_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotHonourError, match="root") as caught:
        doctor.preflight()
    assert "sudo" in caught.value.hint


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        ("000001ffffffffff", ()),
        ("000001ffffffefff", ("CAP_NET_ADMIN",)),
        ("00000000a80425fb", ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")),  # what containers get by default
        ("0000000000000000", ("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN")),
    ],
)
def test_missing_capabilities_are_named(effective: str, absent: tuple[str, ...]) -> None:
    assert missing_capabilities(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{effective}\n") == absent


@needs_root
@pytest.mark.parametrize("capability", ["net_admin", "sys_admin"])
def test_root_without_a_capability_is_refused_before_anything_is_made(
    tmp_path: Path, capability: str
) -> None:
    root = tmp_path / "root"
    less = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    done = subprocess.run(
        [*less, sys.executable, "-m", "testbed", "up", "pair"],
        env={**os.environ, "STORMBED_RUN_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    assert f"CAP_{capability.upper()}" in done.stderr and "--cap-add" in done.stderr
    assert not root.exists()


@needs_root
def test_the_emulation_itself_refuses_what_lacks_a_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(possible, "missing_capabilities", lambda: ("CAP_SYS_ADMIN",))
    with pytest.raises(CannotHonourError, match="CAP_SYS_ADMIN"):
        possible.check_possible(load_topology("pair"))


@pytest.mark.parametrize("error", [CannotHonourError("it is not there", hint="fetch it"), OSError("no access")])
def test_a_check_that_fails_is_a_row_of_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> Check:
        raise error

    whole = [row.name for row in doctor.examine()]
    monkeypatch.setattr(doctor, "check_open_vswitch", fail)
    rows = doctor.examine()
    assert [row.name for row in rows] == whole
    row = next(row for row in rows if row.name == "open vswitch")
    assert row.state is State.MISSING
    assert str(getattr(error, "message", error)) in row.found
    assert row.fix


@needs_root
def test_no_open_vswitch_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A path with every program but Open vSwitch's.
    for directory in sites.SITE_PATH.split(":"):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            link = tmp_path / program.name
            if not program.name.startswith("ovs") and not link.exists():
                link.symlink_to(program)
    monkeypatch.setattr(sites, "SITE_PATH", str(tmp_path))
    row = doctor.check_open_vswitch()
    assert row.state is State.MISSING
    assert "openvswitch-switch" in row.fix
    with pytest.raises(CannotHonourError, match="ovs-vswitchd"):
        doctor.preflight()


def test_the_scratch_child_refuses_to_run_outside_scratch_namespaces() -> None:
    own = str(Path("/proc/self/ns/net").readlink())
    for arguments in ([], [own]):
        refused = subprocess.run(
            [sys.executable, "-m", "testbed.doctor", *arguments], capture_output=True, text=True
        )
        assert refused.returncode != 0
        assert "scratch" in refused.stderr


@needs_root
def test_the_machine_itself_is_not_touched() -> None:
    def interfaces_and_settings() -> tuple[str, str]:
        links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
        return links, congestion.DEFAULT.read_text() + congestion.ALLOWED.read_text()

    before = interfaces_and_settings()
    rows = doctor.check_kernel()
    assert interfaces_and_settings() == before
    assert states(rows)["namespaces"] is State.OK


@needs_root
def test_what_the_kernel_lacks_is_found_out_and_not_assumed() -> None:
    # netem is the one feature that kernels commonly lack: the row must say what the kernel itself says.
    scratch = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    has_netem = subprocess.run(scratch, capture_output=True).returncode == 0
    rows = states(doctor.check_kernel())
    assert ("kernel netem" not in rows) is has_netem


def link_test(**values: float | None) -> dict[str, float | None]:
    """What `link test` finds on the trial's link when all is well, but for these values."""
    return {"carried_bps": 95.2e6, "least_rate_bps": 100e6, "rtt_s": 0.0104, **values}


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (link_test(), State.OK, "95.2 Mbit/s"),
        (link_test(carried_bps=104e6), State.OK, "104.0 Mbit/s"),  # held up before, and counted in this second
        (link_test(carried_bps=70e6), State.DEGRADED, "70.0 Mbit/s"),
        (link_test(carried_bps=3e6), State.MISSING, "less than 1 MB"),  # pings pass, segments do not
        (link_test(rtt_s=None), State.MISSING, "no round trip"),
        (link_test(carried_bps=2000e6), State.MISSING, "not shaped"),
    ],
)
def test_what_tcp_came_to_over_the_trial_link(found: dict[str, float], state: State, words: str) -> None:
    row = judge_tcp(found)
    assert row.state is state
    assert words in row.found
    assert row.state is State.OK or row.fix or row.instead


def test_no_trial_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[None] = []
    monkeypatch.setattr(doctor, "check_trial", lambda: tried.append(None) or [])
    monkeypatch.setattr(doctor, "check_memory", lambda: Check("memory", State.MISSING, "none", fix="buy some"))
    doctor.examine(trial=True)
    assert not tried


def test_a_taken_port_of_the_live_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(machine, "DASHBOARD_PORT", taken.getsockname()[1])
        row = machine.check_ports()
    assert row.state is State.DEGRADED and "--port 0" in row.instead


@needs_root
@pytest.mark.parametrize(("drop", "state"), [((), None), (("sys_nice",), State.DEGRADED)])
def test_refused_real_time_scheduling_is_a_row(drop: tuple[str, ...], state: State | None) -> None:
    less = [argument for name in drop for argument in (f"--bounding-set=-{name}", f"--inh-caps=-{name}")]
    program = (
        "import json; from testbed.doctor import check_kernel; "
        "print(json.dumps([row.as_dict() for row in check_kernel()]))"
    )
    done = subprocess.run(
        [*(["setpriv", *less] if less else []), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = {row["name"]: row["state"] for row in json.loads(done.stdout)}
    assert rows.get("kernel realtime") == state


def test_what_the_environment_does_not_grant_is_told(tmp_path: Path) -> None:
    cubic = Congestion("cubic")
    for key in sysctls.site("dc1", cubic):
        path = tmp_path / key.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert environment_gaps(realtime=True, sending=cubic, proc=tmp_path) == []
    (tmp_path / "net/ipv4/tcp_tso_rtt_log").unlink()
    (tmp_path / "net/ipv6/conf/all/disable_ipv6").unlink()
    scheduling, tcp = environment_gaps(realtime=False, sending=cubic, proc=tmp_path)
    assert "real-time" in scheduling
    assert "net.ipv4.tcp_tso_rtt_log" in tcp and "ipv6" not in tcp
    for sending in (Congestion("reno"), Congestion("cubic", "route")):
        assert environment_gaps(realtime=True, sending=sending, proc=tmp_path)[0] == sending.gap()
