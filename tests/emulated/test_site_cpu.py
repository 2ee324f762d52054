"""Sites with a CPU quota: what is started there stays within it, and the groups go with the testbed."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.emulation import cgroups, launch
from testbed.emulation.rundir import RunDir
from testbed.experiments.manifest import worker_directory
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.sites import ssh_config_path
from tests.emulated.conftest import GONE_S
from topologies.errors import CannotHonourError, StormbedError

pytestmark = pytest.mark.emulated

BUSY = "import os; print(os.getpid(), flush=True)\nwhile True: pass"
QUARTER_AND_HALF = {
    "name": "quarter-and-half",
    "sites": {"dc1": {"cpu": 0.25}, "dc2": {"cpu": 0.5}, "dc3": {}},
    "links": [
        {"endpoints": ["dc1", "dc2"], "rate": "50mbit"},
        {"endpoints": ["dc2", "dc3"], "rate": "50mbit"},
    ],
}
WINDOWS, SECONDS = 5, 1.0


@pytest.fixture(scope="module")
def limited(bring):
    try:
        cgroups.find()
    except CannotHonourError as error:
        pytest.skip(f"{error.message}: that quotas hold is UNVERIFIED on this machine")
    return bring(QUARTER_AND_HALF)


def over_ssh(testbed, site: str) -> subprocess.Popen[str]:
    """A busy loop, started as a run starts a worker."""
    config = str(ssh_config_path(testbed.info.run_dir))
    argv = ["ssh", "-F", config, "-tt", site, f"exec {sys.executable} -c '{BUSY}'"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def cpu_s(testbed, site: str, pid: int) -> float:
    (found,) = [p for p in testbed.client.call("processes", site=site) if p["pid"] == pid]
    return float(found["cpu_s"])


def test_two_busy_loops_get_cpu_time_in_the_ratio_of_their_quotas(limited) -> None:
    group = Path(limited.info.cpu_group)
    version = 1 if limited.info.cpu_by == "cgroup-v1" else 2
    # Whatever else this machine does is not to decide who gets how much.
    group.joinpath(cgroups.weight(version, 256)[0]).write_text(cgroups.weight(version, 256)[1])
    loops = {site: over_ssh(limited, site) for site in ("dc1", "dc2")}
    try:
        pids = {site: int(loop.stdout.readline()) for site, loop in loops.items()}
        start = time.monotonic()
        spent = [{site: cpu_s(limited, site, pid) for site, pid in pids.items()}]
        for _ in range(WINDOWS):
            time.sleep(SECONDS)  # a window of measurement
            spent.append({site: cpu_s(limited, site, pid) for site, pid in pids.items()})
    finally:
        for loop in loops.values():
            loop.kill()
            loop.wait()
    window_s = time.monotonic() - start
    used = [{site: b[site] - a[site] for site in pids} for a, b in pairwise(spent)]
    # Of the usual window: in one in which the machine itself gets no time, neither has what it may.
    assert statistics.median(u["dc2"] / u["dc1"] for u in used) == pytest.approx(2.0, rel=0.15), used
    assert sum(u["dc2"] for u in used) <= 0.5 * window_s * 1.1 + 0.1, "half a core, and no more"


def test_what_comes_through_the_doors_is_in_the_group_and_the_agent_is_not(limited) -> None:
    where = "import sys; print(open('/proc/self/cgroup').read())"
    assert "/dc1" in limited.site("dc1").python(where)
    assert limited.info.cpu_group.rpartition("/")[2] not in limited.site("dc3").python(where)
    spawned = limited.client.call("spawn", site="dc2", argv=["sleep", "30"])
    rows = {p["name"]: p["pid"] for p in limited.client.call("processes", site="dc2") if p["name"]}

    def limited_ones() -> set[str]:
        outside = {pid: limited.supervisor().run("cat", f"/proc/{pid}/cgroup") for pid in rows.values()}
        return {name for name, pid in rows.items() if "/dc2" in outside[pid]}

    assert limited_ones() == {"sshd", "sleep"} < set(rows)
    assert Path(limited.info.cpu_group, "dc2", "cgroup.procs").read_text().split()
    limited.client.call("kill", site="dc2", pid=spawned["pid"])


def test_the_groups_go_with_the_testbed_also_when_it_is_killed(bring) -> None:
    if not cgroups_work():
        pytest.skip("this machine takes no CPU quotas: that their groups are removed is UNVERIFIED on it")
    testbed = bring({**QUARTER_AND_HALF, "name": "killed"})
    group = Path(testbed.info.cpu_group)
    assert sorted(entry.name for entry in group.iterdir() if entry.is_dir()) == ["dc1", "dc2"]
    os.kill(testbed.info.supervisor_pid, 9)
    testbed.leftovers.gone_within(GONE_S)
    assert launch.clean(testbed.name) == [testbed.name]
    assert not group.exists() and not RunDir.of(testbed.name).path.exists()


def cgroups_work() -> bool:
    try:
        cgroups.find()
    except CannotHonourError:
        return False
    return True


EXPERIMENT = """
name: padded
topology: {topology}
training: {{model: tensor-8m, iterations: 4}}
schedulers: [netstorm]
"""


def test_where_no_quota_can_be_set_passes_are_padded_or_it_is_refused(bring, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cgroups, "MOUNTS", Path("/dev/null"))
    twentieth = {
        "name": "twentieth",
        "sites": {"dc1": {"cpu": 0.05}, "dc2": {}},
        "links": [{"endpoints": ["dc1", "dc2"], "rate": "1gbit"}],
    }
    with pytest.raises(StormbedError, match=r"twentieth gives dc1 a cpu, and .* no CPU quotas"):
        bring(twentieth)
    testbed = bring(twentieth, allow_degraded=True)
    assert (testbed.info.cpu_by, testbed.info.cpu_group) == ("padding", None)
    file = tmp_path / "twentieth.json"
    file.write_text(json.dumps(twentieth))
    run = run_experiment(
        experiment_from_text(EXPERIMENT.format(topology=file)), out=tmp_path / "runs", testbed=testbed.name
    )
    manifest = read_run(run).manifest
    assert manifest.testbed["cpu_by"] == "padding"
    assert any("passes at dc1 are padded" in note for note in manifest.notes)

    def pass_s(site: str) -> float:
        trace = (run / worker_directory(site, 0) / "trace.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, trace) if "ready_ns" in row]
        return min((row["ready_ns"] - row["start_ns"]) / 1e9 for row in rows)

    # Twenty times its CPU time, of which the other site has as much; a busy machine adds to both.
    assert pass_s("dc1") > 4 * pass_s("dc2")
