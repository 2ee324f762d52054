"""What `testbed torchrun` gives to each worker, and how it swaps the backend, without a testbed."""

from __future__ import annotations

import json
import subprocess
import sys
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
    for seconds in (0.0, -3.0, float("nan")):
        with pytest.raises(UsageError, match="a timeout of"):
            Launch(script, timeout_s=seconds).check()
        with pytest.raises(UsageError, match="a deadline of"):
            Launch(script, deadline_s=seconds).check()


def test_a_scheduler_is_looked_up_before_anything_starts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(UsageError, match="unknown scheduler 'bogus'") as caught:
        Launch(script, scheduler="bogus").check()
    assert "netstorm" in caught.value.hint and "gloo" not in caught.value.hint
    Launch(script, scheduler="star-first").check(("a", "b"))
    Launch(script, scheduler="bogus", backend="gloo").check(("a", "b"))
    with pytest.raises(UsageError, match="no option 'sever'"):
        Launch(script, scheduler={"name": "star", "options": {"sever": "a"}}).check(("a", "b"))


ENDS = """
import atexit, concurrent.futures, sys, threading, types
sys.modules["torch"] = types.ModuleType("torch")  # so that the process is ended as one that used torch

class Late:
    def __del__(self):
        print("taken apart")

late = Late()
late.itself = late  # only taking the interpreter apart ends it
atexit.register(print, "at exit")
threading.Timer(0.05, print, ["the last thread"]).start()
concurrent.futures.ThreadPoolExecutor().submit(print, "the pool")
print("the script", *sys.argv[1:])
sys.exit({code})
"""


@pytest.mark.parametrize(("code", "status", "said"), [("None", 0, ""), ("3", 3, ""), ("'no data'", 1, "no data\n")])
def test_a_script_ends_as_python_ends_it_but_takes_nothing_apart(
    tmp_path: Path, code: str, status: int, said: str
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS.replace("{code}", code))
    environment = {
        "STORMBED_SCRIPT": json.dumps([str(script), "--x"]),
        "STORMBED_CWD": str(tmp_path),
        "STORMBED_BACKEND": "gloo",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "testbed.torchrun_site"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, said)
    lines = done.stdout.splitlines()
    assert sorted(lines) == ["at exit", "the last thread", "the pool", "the script --x"]
    assert lines[-1] == "at exit"


def test_gloo_is_a_backend_and_no_scheduler_of_the_agents(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(UsageError, match="gloo is no scheduler of the agents") as caught:
        Launch(script, scheduler="gloo").check()
    assert caught.value.hint == "--backend gloo"
    Launch(script, backend="gloo", scheduler="gloo").check()


def test_a_misspelt_script_is_told_from_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "trial.yaml").touch()
    with pytest.raises(InvalidFileError) as caught:
        Launch(tmp_path / "trian.py").check()
    assert caught.value.hint == "did you mean train.py?"
    with pytest.raises(InvalidFileError) as caught:
        Launch(tmp_path / "own.py").check()
    assert caught.value.hint == "known: train.py"
