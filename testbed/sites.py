"""The SSH door of every site: what sshd and ssh are told, and the keys they use.

Each testbed has one user key, each site one host key, all ed25519 and made for that testbed alone. The
builders are pure; `prepare` writes what they return. sshd listens on the site's management address only, so
SSH never takes a byte of the shaped WAN.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.runner import run
from topologies.addressing import SSHD_PORT, Management
from topologies.model import Topology

SSHD = "/usr/sbin/sshd"
SFTP_SERVER = "/usr/lib/openssh/sftp-server"
# sshd refuses to start without its privilege-separation directory, which Debian makes when its service
# starts.
PRIVSEP_DIR = Path("/run/sshd")
SHADOW = Path("/etc/shadow")

# What a site's commands find, whatever the machine's login files say: this interpreter's programs come
# first, so that `python` at a site is the Python that the testbed itself runs on.
SITE_PATH = ":".join(
    [
        str(Path(sys.executable).parent),
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ]
)


@dataclass(frozen=True)
class SiteFiles:
    """Where the files of one site's SSH door are."""

    run_dir: Path
    site: str

    @property
    def directory(self) -> Path:
        return self.run_dir / "sites" / self.site

    @property
    def config(self) -> Path:
        return self.directory / "sshd_config"

    @property
    def host_key(self) -> Path:
        return self.directory / "ssh_host_ed25519_key"

    @property
    def pid(self) -> Path:
        return self.directory / "sshd.pid"

    @property
    def log(self) -> Path:
        return self.directory / "sshd.log"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def entry(self) -> Path:
        return self.directory / "ssh_session"


def user_key(run_dir: Path) -> Path:
    """The private key that opens every site of this testbed."""
    return run_dir / "id_ed25519"


def ssh_config_path(run_dir: Path) -> Path:
    """The file for `ssh -F`."""
    return run_dir / "ssh_config"


def site_environment(run_dir: Path, site: str) -> dict[str, str]:
    """The environment of every process that starts at a site."""
    return {
        "PATH": SITE_PATH,
        "LANG": "C.UTF-8",
        "HOME": str(SiteFiles(run_dir, site).home),
        "STORMBED_RUN_DIR": str(run_dir),
        "STORMBED_SITE": site,
    }


def sshd_config(run_dir: Path, site: str, address: str, *, use_pam: bool = False) -> str:
    """The sshd_config of one site.

    MaxStartups and MaxSessions are far above the defaults (10), at which a parallel start of a few dozen
    sites fails with "Error reading SSH protocol banner". StrictModes is off because a run directory may lie
    below a directory that others can write, such as /tmp; the files themselves are root's.
    """
    files = SiteFiles(run_dir, site)
    environment = " ".join(f'"{key}={value}"' for key, value in site_environment(run_dir, site).items())
    lines = [
        f"# The SSH door of site {site}; written by Stormbed, for this testbed only.",
        f"Port {SSHD_PORT}",
        "AddressFamily inet",
        f"ListenAddress {address}",
        f'HostKey "{files.host_key}"',
        f'PidFile "{files.pid}"',
        f'AuthorizedKeysFile "{user_key(run_dir)}.pub"',
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AllowUsers root",
        "StrictModes no",
        f"UsePAM {'yes' if use_pam else 'no'}",
        "UseDNS no",
        "MaxStartups 1024",
        "MaxSessions 1024",
        "LoginGraceTime 30",
        "ClientAliveInterval 15",
        "AcceptEnv STORMBED_*",
        f"SetEnv {environment}",
        "PrintMotd no",
        "PrintLastLog no",
        "X11Forwarding no",
        "AllowAgentForwarding no",
        "LogLevel INFO",
        f"Subsystem sftp {SFTP_SERVER}",
        f"ForceCommand exec /bin/sh {shlex.quote(str(files.entry))}",
    ]
    return "\n".join(lines) + "\n"


def session_entry() -> str:
    """The script that every session goes through: it only moves to the site's home, which sshd would not do.

    sshd changes to the home of the passwd entry, one directory that all sites share.
    """
    return (
        "# Written by Stormbed: start every SSH session of this site in the site's own home.\n"
        'cd "$HOME" || exit 1\n'
        'command="$SSH_ORIGINAL_COMMAND"\n'
        "unset SSH_ORIGINAL_COMMAND OLDPWD\n"
        '[ -z "$command" ] || exec "$SHELL" -c "$command"\n'
        'exec "$SHELL" -l\n'
    )


def shell_profile(site: str) -> str:
    """The site's ~/.profile: /etc/profile has just replaced PATH in a login shell; the prompt names the
    site.
    """
    return (
        f"# Written by Stormbed for site {site}.\n"
        f"export PATH={shlex.quote(SITE_PATH)}\n"
        f"PS1={shlex.quote(site + ':$PWD# ')}\n"
    )


def ssh_config(run_dir: Path, addresses: Mapping[str, str]) -> str:
    """The client's configuration: every site by its name, nothing asked, nothing of the user's own used.

    It says nothing of other hosts, so that a user's own configuration may include it.

    Args:
        run_dir: the testbed's directory.
        addresses: site name to management address.
    """
    lines = [
        f"# Written by Stormbed. Use it as: ssh -F {shlex.quote(str(ssh_config_path(run_dir)))} SITE",
        f'# or at the top of ~/.ssh/config: Include "{ssh_config_path(run_dir)}"',
    ]
    for site, address in addresses.items():
        lines += [f"Host {site}", f"    HostName {address}"]
    lines += [
        f"Host {' '.join(addresses)}",
        f"    Port {SSHD_PORT}",
        "    User root",
        f'    IdentityFile "{user_key(run_dir)}"',
        "    IdentitiesOnly yes",
        "    IdentityAgent none",
        "    PreferredAuthentications publickey",
        "    PasswordAuthentication no",
        "    BatchMode yes",
        "    StrictHostKeyChecking yes",
        f'    UserKnownHostsFile "{run_dir}/known_hosts"',
        "    GlobalKnownHostsFile /dev/null",
        "    UpdateHostKeys no",
        "    ControlMaster no",
        "    ConnectTimeout 10",
        "    ServerAliveInterval 15",
        "    SendEnv STORMBED_*",
        "    LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def known_hosts(addresses: Mapping[str, str], host_keys: Mapping[str, str]) -> str:
    """One line a site, under its name and its address.

    Args:
        addresses: site name to management address.
        host_keys: site name to the text of its public host key, "ssh-ed25519 AAAA... comment".
    """
    lines = []
    for site, address in addresses.items():
        kind, key = host_keys[site].split()[:2]
        lines.append(f"{site},{address} {kind} {key}")
    return "\n".join(lines) + "\n"


def password_locked(shadow: str, user: str = "root") -> bool:
    """Whether an account is locked in the text of /etc/shadow.

    sshd without PAM refuses every login, even by key, to an account whose password field begins with "!"
    (Debian's installer locks root so when it makes a first user instead). "*" only means: no password.
    """
    for line in shadow.splitlines():
        fields = line.split(":")
        if fields[0] == user and len(fields) > 1:
            return fields[1].startswith("!")
    return False


def sshd_argv(run_dir: Path, site: str) -> list[str]:
    """The command that serves a site in the foreground; it runs inside that site's namespaces."""
    files = SiteFiles(run_dir, site)
    return [SSHD, "-D", "-E", str(files.log), "-f", str(files.config)]


def prepare(run_dir: Path, topology: Topology, management: Management) -> None:
    """Make the keys and write the files of every site, before anything is started.

    Raises:
        StormbedError: ssh-keygen failed or is missing.
    """
    addresses = {site: management.site(k) for k, site in enumerate(topology.site_names)}
    use_pam = root_locked()
    keygen(user_key(run_dir), f"stormbed-{run_dir.name}")
    host_keys = {}
    for site, address in addresses.items():
        files = SiteFiles(run_dir, site)
        files.home.mkdir(parents=True, exist_ok=True)
        keygen(files.host_key, f"stormbed-{run_dir.name}-{site}")
        host_keys[site] = files.host_key.with_suffix(".pub").read_text(encoding="utf-8")
        files.config.write_text(sshd_config(run_dir, site, address, use_pam=use_pam), encoding="utf-8")
        files.entry.write_text(session_entry(), encoding="utf-8")
        (files.home / ".profile").write_text(shell_profile(site), encoding="utf-8")
    (run_dir / "known_hosts").write_text(known_hosts(addresses, host_keys), encoding="utf-8")
    ssh_config_path(run_dir).write_text(ssh_config(run_dir, addresses), encoding="utf-8")
    PRIVSEP_DIR.mkdir(mode=0o755, exist_ok=True)


def root_locked() -> bool:
    """Whether root's account is locked on this machine, so that sshd has to go through PAM."""
    try:
        return password_locked(SHADOW.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False


def keygen(path: Path, comment: str) -> None:
    """An ed25519 key pair without a passphrase, in place of any older one."""
    path.unlink(missing_ok=True)
    path.with_suffix(".pub").unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], timeout=20)
    path.chmod(0o600)
