"""Which run directory a user means, and which runs there are."""

from __future__ import annotations

from pathlib import Path

from testbed.experiments.manifest import MANIFEST
from topologies.errors import InvalidFileError

RUNS = "runs"


def find_run(reference: str, root: Path) -> Path:
    """The run directory that `reference` names: a path, `last`, a run's id or the end of one.

    Args:
        reference: what the user typed.
        root: the folder of runs that ids are looked up in.

    Raises:
        InvalidFileError: nothing, or more than one run, answers to it.
    """
    path = Path(reference)
    if path.is_dir():
        return path
    ids = list_runs(root)
    if reference == "last":
        if not ids:
            raise InvalidFileError(f"no run under {root}", hint="`testbed run quickstart` makes one")
        return root / ids[-1]
    found = [name for name in ids if reference in (name, name.split("-", 1)[-1], name.rsplit("-", 1)[-1])]
    if len(found) > 1:
        raise InvalidFileError(f"{reference!r} names {len(found)} runs: {', '.join(found)}")
    if not found:
        known = f"known: {', '.join(ids[-5:])}" if ids else f"there is no run under {root}"
        raise InvalidFileError(f"no run {reference!r}", hint=known)
    return root / found[0]


def list_runs(root: Path) -> tuple[str, ...]:
    """The ids of the runs under `root`, oldest first: an id begins with the second of its start, and among
    those of one second the manifest that was written last is the newest.
    """
    if not root.is_dir():
        return ()

    def age(entry: Path) -> tuple[str, int, str]:
        return entry.name.split("-", 1)[0], (entry / MANIFEST).stat().st_mtime_ns, entry.name

    found = [entry for entry in root.iterdir() if (entry / MANIFEST).is_file()]
    return tuple(entry.name for entry in sorted(found, key=age))
