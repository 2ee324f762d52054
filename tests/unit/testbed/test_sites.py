"""The SSH door: what the builders write, checked with OpenSSH's own parsers where there is one."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from testbed import sites
from topologies.addressing import Management
from topologies.load import load_topology

RUN = Path("/run/stormbed/try")
ADDRESSES = {"dc1": "10.199.4.1", "dc2": "10.199.4.2"}


def settings(text: str) -> dict[str, str]:
    """Keyword (lower case) to value of an sshd_config."""
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {key.lower(): value for key, value in lines}


def test_sshd_listens_on_the_management_address_only() -> None:
    found = settings(sites.sshd_config(RUN, "dc2", "10.199.4.2"))
    assert found["listenaddress"] == "10.199.4.2"
    assert found["addressfamily"] == "inet"


def test_sshd_admits_keys_only_and_asks_nobody_else() -> None:
    found = settings(sites.sshd_config(RUN, "dc2", "10.199.4.2"))
    assert found["authenticationmethods"] == "publickey"
    assert found["passwordauthentication"] == found["kbdinteractiveauthentication"] == "no"
    assert found["usedns"] == found["usepam"] == "no"


def test_sshd_takes_many_connections_at_once() -> None:
    found = settings(sites.sshd_config(RUN, "dc2", "10.199.4.2"))
    assert int(found["maxstartups"]) >= 100 and int(found["maxsessions"]) >= 100


def test_no_keyword_is_given_twice() -> None:
    # sshd keeps the first of two silently, so the second would be a setting that does nothing.
    text = sites.sshd_config(RUN, "dc2", "10.199.4.2")
    keywords = [line.split()[0].lower() for line in text.splitlines() if not line.startswith("#")]
    assert len(keywords) == len(set(keywords))


def test_a_locked_root_goes_through_pam() -> None:
    assert settings(sites.sshd_config(RUN, "dc1", "10.199.4.1", use_pam=True))["usepam"] == "yes"


@pytest.mark.parametrize(
    ("shadow", "locked"),
    [
        ("root:!:20000:0:99999:7:::\n", True),
        ("root:!$y$j9T$abc:20000::::::\n", True),
        ("root:*:20000:0:99999:7:::\n", False),
        ("root:$y$j9T$abc:20000::::::\n", False),
        ("daemon:!:20000::::::\nroot:*:20000::::::\n", False),
        ("", False),
    ],
)
def test_password_locked(shadow: str, locked: bool) -> None:
    assert sites.password_locked(shadow) is locked


def test_known_hosts_names_each_site_and_its_address() -> None:
    text = sites.known_hosts(ADDRESSES, {"dc1": "ssh-ed25519 AAAA1 a comment", "dc2": "ssh-ed25519 AAAA2 x"})
    assert text == "dc1,10.199.4.1 ssh-ed25519 AAAA1\ndc2,10.199.4.2 ssh-ed25519 AAAA2\n"


def test_session_entry_is_shell() -> None:
    subprocess.run(["sh", "-n"], input=sites.session_entry(), text=True, check=True)


def test_site_environment_starts_this_interpreter_first() -> None:
    path = sites.site_environment(RUN, "dc1")["PATH"].split(":")
    assert (Path(path[0]) / "python").exists()
    assert "/usr/sbin" in path


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sites, "PRIVSEP_DIR", tmp_path / "privsep")
    run_dir = tmp_path / "try"
    run_dir.mkdir()
    sites.prepare(run_dir, load_topology("triangle"), Management("10.199.4.0/24"))
    return run_dir


def test_prepare_makes_private_keys_that_only_root_reads(prepared: Path) -> None:
    keys = [sites.user_key(prepared), sites.SiteFiles(prepared, "dc1").host_key]
    for key in keys:
        assert key.stat().st_mode & 0o077 == 0
        assert "PRIVATE KEY" in key.read_text()
    assert keys[0].read_text() != keys[1].read_text()


def test_prepare_again_replaces_the_keys(prepared: Path) -> None:
    before = sites.user_key(prepared).read_text()
    sites.prepare(prepared, load_topology("triangle"), Management("10.199.4.0/24"))
    assert sites.user_key(prepared).read_text() != before
    known = (prepared / "known_hosts").read_text()
    public = sites.SiteFiles(prepared, "dc3").host_key.with_suffix(".pub").read_text().split()[1]
    assert f"dc3,10.199.4.3 ssh-ed25519 {public}" in known


def test_ssh_reads_the_config_and_would_ask_nothing(prepared: Path) -> None:
    config = str(sites.ssh_config_path(prepared))
    shown = subprocess.run(
        ["ssh", "-G", "-F", config, "dc3"], capture_output=True, text=True, check=True
    ).stdout
    found = settings(shown)
    assert found["hostname"] == "10.199.4.3"
    assert found["user"] == "root"
    assert found["batchmode"] == "yes"
    assert found["stricthostkeychecking"] in ("true", "yes")
    assert found["userknownhostsfile"] == str(prepared / "known_hosts")
    assert found["identityfile"] == str(prepared / "id_ed25519")
    assert found["identityagent"] == "none"


def test_ones_own_configuration_may_include_it(prepared: Path, tmp_path: Path) -> None:
    own = tmp_path / "config"
    own.write_text(
        f'Include "{sites.ssh_config_path(prepared)}"\n'
        "Host myserver\n    HostName 192.0.2.10\n    User me\n    IdentityFile ~/.ssh/id_mine\n"
    )

    def seen(host: str, config: Path) -> dict[str, str]:
        done = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True)
        return settings(done.stdout)

    assert seen("dc3", own) == seen("dc3", sites.ssh_config_path(prepared))
    mine = seen("myserver", own)
    own.write_text(own.read_text().split("\n", 1)[1])
    assert mine == seen("myserver", own)
    assert (mine["user"], mine["identityfile"], mine["batchmode"]) == ("me", "~/.ssh/id_mine", "no")


@pytest.mark.skipif(os.geteuid() != 0, reason="sshd -t needs root: that sshd takes the file is UNVERIFIED")
def test_sshd_accepts_the_config(prepared: Path) -> None:
    sites.PRIVSEP_DIR.mkdir(exist_ok=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    argv = sites.sshd_argv(prepared, "dc1")
    config = argv[argv.index("-f") + 1]
    tried = subprocess.run([argv[0], "-T", "-f", config], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr
    found = settings(tried.stdout)
    assert found["listenaddress"] == "10.199.4.1:22"
    assert found["pidfile"] == str(prepared / "sites/dc1/sshd.pid")
    environment = dict(
        pair.split("=", 1)
        for line in tried.stdout.splitlines()
        if line.startswith("setenv ")
        for pair in [shlex.split(line.split(None, 1)[1])[0]]
    )
    assert environment == sites.site_environment(prepared, "dc1")
