"""The SSH door on a real testbed: who gets in, what they find, and what outlives the connection."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed import Testbed, remote, sites
from topologies.addressing import Management
from topologies.errors import RunFailedError
from topologies.load import load_topology

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def testbed(unique_name: Callable[[], str]) -> Iterator[Testbed]:
    with Testbed.up("triangle", name=unique_name(), calibrate=False) as testbed:
        yield testbed


@pytest.fixture
def ssh(testbed: Testbed) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        # No terminal and no standard input: whatever asked a question would fail.
        return subprocess.run(
            ["ssh", "-F", str(testbed.ssh_config), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            env=env,
        )

    return run


def test_ssh_asks_nothing_and_finds_the_site(
    testbed: Testbed, ssh: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = ssh("dc3", "hostname; pwd; cat /etc/hostname >/dev/null; command -v python")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    name, home, python = done.stdout.splitlines()
    assert name == "dc3"
    assert home == f"/run/stormbed/{testbed.name}/sites/dc3/home"
    assert Path(python).parent == Path(sys.executable).parent


def test_ssh_needs_nothing_of_the_callers_own_environment(
    ssh: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = ssh("dc1", 'echo "$PATH"', env={"PATH": "/usr/bin"})
    assert done.stdout.strip() == sites.SITE_PATH


def test_the_exit_code_is_the_commands(ssh: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert ssh("dc2", "exit 7").returncode == 7


def test_variables_of_ours_travel_and_others_do_not(
    ssh: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    environment = {"PATH": "/usr/bin:/bin", "STORMBED_JOB": "j1", "SECRET": "x", "STORMBED_SITE": "forged"}
    done = ssh("dc1", 'echo "$STORMBED_JOB,$SECRET,$STORMBED_SITE"', env=environment)
    assert done.stdout.strip() == "j1,,dc1"


def test_a_login_shell_is_at_home_too(testbed: Testbed) -> None:
    done = subprocess.run(
        ["ssh", "-tt", "-F", str(testbed.ssh_config), "dc1"],
        input="cd /\ncd\npwd\nexit 4\n",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 4
    assert f"/run/stormbed/{testbed.name}/sites/dc1/home" in done.stdout
    assert "dc1:" in done.stdout  # the prompt says where one is


def test_files_go_both_ways(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"\0\1" * 5000)
    scp = ["scp", "-q", "-F", str(testbed.ssh_config)]
    subprocess.run([*scp, str(tmp_path / "there"), "dc2:copy"], check=True, timeout=30)
    subprocess.run([*scp, "dc2:copy", str(tmp_path / "back")], check=True, timeout=30)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_no_other_key_and_no_password_gets_in(testbed: Testbed, tmp_path: Path) -> None:
    sites.keygen(tmp_path / "other", "other")
    config = tmp_path / "ssh_config"
    own = testbed.ssh_config.read_text()
    config.write_text(own.replace(str(sites.user_key(testbed.run_dir)), str(tmp_path / "other")))
    refused = subprocess.run(
        ["ssh", "-F", str(config), "dc1", "true"], capture_output=True, text=True, timeout=30
    )
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr


def test_a_site_with_another_host_key_is_refused(testbed: Testbed, tmp_path: Path) -> None:
    known = (testbed.run_dir / "known_hosts").read_text().splitlines()
    keys = [line.split()[-1] for line in known]
    swapped = [line.replace(keys[0], keys[1]) if keys[0] in line else line for line in known]
    (tmp_path / "known_hosts").write_text("\n".join(swapped) + "\n")
    for argument in (f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "UserKnownHostsFile=/dev/null"):
        config = tmp_path / "ssh_config"
        own = testbed.ssh_config.read_text()
        config.write_text(own.replace(f'UserKnownHostsFile "{testbed.run_dir}/known_hosts"', argument))
        assert argument in config.read_text()
        refused = subprocess.run(["ssh", "-F", str(config), "dc1", "true"], capture_output=True, timeout=30)
        assert refused.returncode == 255


def test_fabric_checks_the_host_key_too(testbed: Testbed, tmp_path: Path) -> None:
    for name in ("ssh_config", "known_hosts"):
        (tmp_path / name).write_text((testbed.run_dir / name).read_text())
    (tmp_path / "known_hosts").write_text("")
    with (
        remote.connect(tmp_path / "ssh_config", "dc1") as connection,
        pytest.raises(Exception, match="known_hosts"),
    ):
        connection.run("true", hide=True)


def test_sshd_listens_on_the_management_address_only(testbed: Testbed) -> None:
    listening = testbed.sites["dc1"].run(["ss", "-Hltn", "sport", "=", ":22"]).stdout.splitlines()
    assert [line.split()[3] for line in listening] == [f"{testbed.sites['dc1'].mgmt_ip}:22"]


def test_ssh_takes_no_byte_of_the_wan(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 5_000_000)
    before = {(link["src"], link["dst"]): link["counters"]["bytes"] for link in testbed.links()}
    subprocess.run(
        ["scp", "-q", "-F", str(testbed.ssh_config), str(tmp_path / "big"), "dc1:big"], check=True, timeout=30
    )
    after = {(link["src"], link["dst"]): link["counters"]["bytes"] for link in testbed.links()}
    assert sum(after.values()) - sum(before.values()) < 100_000


def test_33_connections_at_once(testbed: Testbed) -> None:
    start = threading.Barrier(33)

    def visit(number: int) -> str:
        with remote.connect(testbed.ssh_config, "dc1", timeout=30) as connection:
            start.wait(30)
            connection.open()
            return str(connection.run(f"echo {number}", hide=True, in_stream=False).stdout.strip())

    with ThreadPoolExecutor(33) as pool:
        assert list(pool.map(visit, range(33))) == [str(number) for number in range(33)]


# --- Processes that outlive the connection ----------------------------------------------------------------


def test_a_process_outlives_its_connection_and_can_be_listed_and_ended(
    testbed: Testbed, tmp_path: Path
) -> None:
    code = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.1)"
    with remote.connect(testbed.ssh_config, "dc2") as connection:
        connection.open()
        began = time.monotonic()
        process = remote.start_detached(
            connection,
            ["python", "-c", code],
            env={"STORMBED_WORKER": "0"},
            stdout=tmp_path / "logs" / "out",
            stderr=tmp_path / "logs" / "err",
        )
        # One that hung on the connection would be given up after this.
        assert time.monotonic() - began < 0.75 * remote.COMMAND_TIMEOUT_S
    time.sleep(1.0)  # a process that hung on the connection would end now

    def lines() -> int:
        return len((tmp_path / "logs" / "out").read_text().splitlines())

    earlier = lines()
    deadline = time.monotonic() + 30
    while lines() == earlier and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lines() > earlier, (tmp_path / "logs" / "err").read_text()

    assert process.pid in [found["pid"] for found in testbed.sites["dc2"].processes()]
    with remote.connect(testbed.ssh_config, "dc2") as connection:
        assert [p.key for p in remote.list_processes(connection) if p.running] == [process.key]
        ended = remote.end_process(connection, process)
        assert not ended.running
        assert ended.exit_code == 128 + 15
        assert remote.end_process(connection, process) == ended
    assert process.pid not in [found["pid"] for found in testbed.sites["dc2"].processes()]


def test_a_program_that_the_site_lacks_is_named(testbed: Testbed, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        remote.connect(testbed.ssh_config, "dc1") as connection,
        pytest.raises(RunFailedError, match=r"dc1 .*no program no-such-thing"),
    ):
        remote.start_detached(connection, ["no-such-thing"], stdout=out, stderr=err)


# --- A machine whose root account is locked ---------------------------------------------------------------

LOCKED = """
import subprocess, sys
from pathlib import Path
from testbed import sites
from testbed.emulation.waiting import wait_for
from topologies.addressing import Management
from topologies.load import load_topology

run_dir = Path(sys.argv[1])
for command in ("ip link set lo up", "ip addr add 10.199.77.1/24 dev lo"):
    subprocess.run(command.split(), check=True)
assert sites.root_locked()
sites.prepare(run_dir, load_topology("pair"), Management("10.199.77.0/24"))
config = sites.SiteFiles(run_dir, "dc1").config
if sys.argv[2] == "without-pam":
    config.write_text(config.read_text().replace("UsePAM yes", "UsePAM no"))
sshd = subprocess.Popen(sites.sshd_argv(run_dir, "dc1"))
try:
    wait_for(sites.SiteFiles(run_dir, "dc1").pid.exists, "sshd", 20)
    ssh = ["ssh", "-F", str(sites.ssh_config_path(run_dir)), "dc1", "hostname"]
    sys.exit(subprocess.run(ssh, capture_output=True, timeout=20).returncode)
finally:
    sshd.kill()
"""


@pytest.mark.parametrize(("how", "code"), [("with-pam", 0), ("without-pam", 255)])
def test_a_locked_root_account_is_served_through_pam(tmp_path: Path, how: str, code: int) -> None:
    shadow = tmp_path / "shadow"
    others = Path("/etc/shadow").read_text().splitlines()[1:]
    shadow.write_text("\n".join(["root:!:20000:0:99999:7:::", *others]) + "\n")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    hide = 'mount --bind "$1" /etc/shadow && shift && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "--net", "--mount", "--", "sh", "-c", hide, "sh", str(shadow)),
            *(sys.executable, "-c", LOCKED, str(run_dir), how),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr


def test_the_door_of_a_topology_can_be_prepared_without_a_testbed(tmp_path: Path) -> None:
    sites.prepare(tmp_path, load_topology("netstorm-9"), Management("10.199.200.0/24"))
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 9
