"""On what a run was made: software versions, the source's state, the kernel, the processors. Read only."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from testbed.runner import run
from topologies.errors import StormbedError

_PACKAGES = (
    "stormbed",
    "torch",
    "numpy",
    "scipy",
    "mininet",
    "os-ken",
    "ryu",
    "fabric",
    "pydantic",
    "msgpack",
)
_SOURCE = Path(__file__).resolve().parents[2]


def package_versions() -> dict[str, str]:
    """Python's version and those of the installed packages that a result may depend on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def source_state() -> dict[str, Any] | None:
    """The commit that this source stands at and whether it has changes; None outside a git checkout."""
    if not (_SOURCE / ".git").exists():
        return None
    try:
        commit = run(["git", "-C", str(_SOURCE), "rev-parse", "HEAD"], timeout=10).stdout.strip()
        changes = run(["git", "-C", str(_SOURCE), "status", "--porcelain"], timeout=30).stdout
    except StormbedError:
        return None
    return {"commit": commit, "changed": bool(changes.strip())}


def describe_machine() -> dict[str, Any]:
    """Kernel, processors and memory."""
    cpus = _fields(Path("/proc/cpuinfo"))
    memory = _fields(Path("/proc/meminfo")).get("MemTotal", ["0 kB"])[0]
    return {
        "kernel": platform.release(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "hostname": platform.node(),
        "cpu": cpus.get("model name", [platform.processor() or "unknown"])[0],
        "cpu_count": len(cpus.get("processor", ())) or None,
        "memory_bytes": int(memory.split()[0]) * 1024,
    }


def _fields(path: Path) -> dict[str, list[str]]:
    """The `name : value` lines of a file under /proc, each name with all its values."""
    fields: dict[str, list[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), []).append(value.strip())
    return fields
