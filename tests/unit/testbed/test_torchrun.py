"""What `testbed torchrun` gives to each worker, and how it swaps the backend, without a testbed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from testbed.torchrun import Launch, environment, rows
from testbed.torchrun_site import chosen_backend, redirect
from topologies.errors import InvalidFileError, UsageError


@pytest.mark.parametrize(
    ("asked", "chosen", "given"),
    [
        ("gloo", "stormbed", "stormbed"),
        ("stormbed", "gloo", "gloo"),
        ("gloo", "gloo", "gloo"),
        ("GLOO", "stormbed", "stormbed"),
        ("cpu:gloo,cuda:nccl", "stormbed", "stormbed"),
        (None, "stormbed", "stormbed"),
        (None, "gloo", "gloo"),
        # No machine here has it; torch's own words are better than a quiet swap.
        ("nccl", "stormbed", "nccl"),
        ("cpu:mpi", "gloo", "cpu:mpi"),
    ],
)
def test_only_gloo_and_stormbed_are_swapped(asked: str | None, chosen: str, given: str | None) -> None:
    assert chosen_backend(asked, chosen) == given


def test_the_swap_passes_everything_else_on() -> None:
    calls: list[tuple[object, ...]] = []
    module = ModuleType("c10d")
    module.init_process_group = lambda *args, **kwargs: calls.append((*args, kwargs))  # type: ignore[attr-defined]
    redirect(module, "stormbed")
    module.init_process_group("gloo", rank=1, world_size=2)
    module.init_process_group(backend="gloo", init_method="env://", timeout=5)
    redirected = ModuleType("c10d")
    redirected.init_process_group = lambda *args, **kwargs: calls.append((*args, kwargs))  # type: ignore[attr-defined]
    redirect(redirected, "gloo")
    redirected.init_process_group("stormbed", init_method="stormbed://")
    assert calls == [
        ("stormbed", None, {"rank": 1, "world_size": 2}),
        ("stormbed", "env://", {"timeout": 5}),
        ("gloo", "env://", {}),
    ]


def test_ranks_go_by_site_then_by_worker() -> None:
    sites = {"dc1": 2, "dc2": 1}
    assert [(row.rank, row.site, row.worker) for row in rows(sites)] == [
        (0, "dc1", 0),
        (1, "dc1", 1),
        (2, "dc2", 0),
    ]
    launch = Launch(Path("/x/train.py"), ("--lr", "0.1"), backend="gloo", directory=Path("/x"))
    found = environment(rows(sites)[2], launch, sites, "job", 29501)
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("2", "3", "0")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29501")
    assert found["GLOO_SOCKET_IFNAME"] == "h2-wan"
    assert found["STORMBED_BACKEND"] == "gloo"
    assert json.loads(found["STORMBED_SCRIPT"]) == ["/x/train.py", "--lr", "0.1"]


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    with pytest.raises(InvalidFileError, match=r"no file .*train\.py"):
        Launch(script).check()
    script.touch()
    Launch(script).check()
    with pytest.raises(UsageError, match="no backend 'nccl'"):
        Launch(script, backend="nccl").check()
    with pytest.raises(UsageError, match="0 workers"):
        Launch(script, workers=0).check()
