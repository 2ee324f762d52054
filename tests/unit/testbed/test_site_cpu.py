"""CPU quotas of sites: what is written where, and how a worker is held back where nothing can be written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agents.compute import CPU_SHARE, Compute, Pass, cpu_share
from testbed.emulation import cgroups, possible
from testbed.emulation.cgroups import Hierarchy, Quota
from testbed.emulation.rundir import RunDir, SiteInfo, TestbedInfo
from testbed.experiments.workers import cpu_padding
from topologies.errors import CannotHonourError, InvalidFileError, UsageError
from topologies.load import topology_from_dict
from topologies.model import Topology

V1 = """tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"


def network(**sites: dict[str, object]) -> Topology:
    names = list(sites)
    return topology_from_dict(
        {"name": "some", "sites": sites, "links": [{"endpoints": names[:2], "rate": "1mbit"}]}
    )


def test_the_hierarchy_with_the_cpu_controller_comes_first() -> None:
    assert cgroups.hierarchies(V1) == [
        Hierarchy(1, Path("/sys/fs/cgroup/cpu,cpuacct")),
        Hierarchy(2, Path("/sys/fs/cgroup/unified")),
    ]
    assert cgroups.hierarchies(V2) == [Hierarchy(2, Path("/sys/fs/cgroup"))]
    assert cgroups.hierarchies("tmpfs /tmp tmpfs rw 0 0\n") == []


def test_half_a_core_in_both_versions() -> None:
    assert cgroups.settings(1, 0.5) == (("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "10000"))
    assert cgroups.settings(2, 1.5) == (("cpu.max", "30000 20000"),)
    # The least that a topology may declare is the least that the kernel takes.
    assert cgroups.settings(1, 0.05)[1] == ("cpu.cfs_quota_us", "1000")


def test_a_group_weighs_what_its_workers_would() -> None:
    assert [cgroups.weight(1, n)[1] for n in (1, 3, 1000)] == ["1024", "3072", "262144"]
    assert [cgroups.weight(2, n)[1] for n in (1, 3, 1000)] == ["100", "300", "10000"]


def test_entering_a_group_is_done_by_the_process_itself() -> None:
    assert cgroups.joining(Path("/g/dc1"), ["a", "b c"]) == [
        *("sh", "-c", 'echo 0 > "$0" && exec "$@"', "/g/dc1/cgroup.procs", "a", "b c")
    ]


def test_what_a_topology_says() -> None:
    topology = network(a={"cpu": 0.5, "workers": 2}, b={})
    assert cgroups.quotas(topology) == {"a": Quota(0.5, 2)}
    assert topology_from_dict(topology.to_dict()).sites["a"].cpu == 0.5
    for cpu in (0, -1, 0.01, 2000, "half"):
        with pytest.raises(InvalidFileError, match=r"sites\.a\.cpu"):
            network(a={"cpu": cpu}, b={})


def test_version_2_is_written_as_its_rules_ask(tmp_path: Path) -> None:
    """In plain directories: the controller is enabled from the top, and quotas stand in the leaves."""
    tmp_path.joinpath("cgroup.subtree_control").write_text("memory\n")
    group = tmp_path / "stormbed-x"
    group.mkdir()
    group.joinpath("cgroup.subtree_control").write_text("")
    cgroups._make_group(Hierarchy(2, tmp_path), group, {"a": Quota(0.25, 2)})
    assert tmp_path.joinpath("cgroup.subtree_control").read_text() == "+cpu"
    assert group.joinpath("cgroup.subtree_control").read_text() == "+cpu"
    assert group.joinpath("a", "cpu.max").read_text() == "5000 20000"
    assert group.joinpath("a", "cpu.weight").read_text() == group.joinpath("cpu.weight").read_text() == "200"


def test_what_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    mounts.write_text("")
    with pytest.raises(CannotHonourError, match="no control groups are mounted"):
        cgroups.find()
    (tmp_path / "absent").mkdir()
    mounts.write_text(f"cgroup2 {tmp_path}/absent cgroup2 rw 0 0\n")
    with pytest.raises(CannotHonourError, match=r"cgroup v2: .*absent/cgroup.subtree_control: No such file"):
        cgroups.find()
    topology = network(a={"cpu": 0.5}, b={})
    with pytest.raises(CannotHonourError, match="some gives a a cpu, and this environment takes no CPU quotas"):
        possible.find_quotas(topology, False)
    quotas, limits = possible.find_quotas(topology, True)
    assert quotas is None and len(limits) == 1 and "passes at a are padded" in limits[0]
    assert possible.find_quotas(network(a={}, b={}), False) == (None, ())


def test_groups_of_different_testbeds_are_different() -> None:
    root = Hierarchy(1, Path("/cpu"))
    groups = {root.group(RunDir(Path(path))) for path in ("/run/stormbed/x", "/tmp/y/x", "/run/stormbed/y")}
    assert len(groups) == 3 and all(group.name.startswith("stormbed-") for group in groups)


def test_padding_shares_a_site_among_its_workers() -> None:
    topology = network(a={"cpu": 0.5, "workers": 2}, b={"cpu": 3})
    sites = {name: SiteInfo(index=k, wan_ip="", mgmt_ip="") for k, name in enumerate(topology.sites)}

    def info(cpu_by: str | None) -> TestbedInfo:
        fields = {"created_s": 0, "state": "up", "subnet": "10.199.1.0/24", "interface": "x", "sites": sites}
        return TestbedInfo.model_validate(
            {"name": "x", "topology": topology.to_dict(), "cpu_by": cpu_by, **fields}
        )

    assert cpu_padding(info("padding"), "a") == {CPU_SHARE: "0.25"}
    assert cpu_padding(info("padding"), "b") == {CPU_SHARE: "1"}
    assert cpu_padding(info("cgroup-v1"), "a") == cpu_padding(info(None), "a") == {}


def busy(cpu_s: float) -> None:
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def test_a_pass_held_to_a_quarter_of_a_core_lasts_four_times_its_cpu_time() -> None:
    """Between what follows from the least and from the most that can have passed where this process is held up."""
    one = Pass("real", "a", 0.25)
    assert one.waits
    start, cpu_start = time.monotonic(), time.process_time()
    one.begin(1, 0, 0)
    begun, cpu_begun = time.monotonic(), time.process_time()
    busy(0.05)
    before, cpu_before = time.monotonic(), time.process_time()
    left = one.left_s()
    after, cpu_after = time.monotonic(), time.process_time()
    assert (cpu_before - cpu_begun) / 0.25 - (after - start) <= left + 1e-9
    assert left <= max(0.0, (cpu_after - cpu_start) / 0.25 - (before - begun)) + 1e-9


def test_a_declared_time_and_a_share_are_one_wait() -> None:
    free, declared = Pass("real", "a"), Pass(Compute(mean_s=50), "a")
    assert not free.waits and declared.waits
    free.begin(1, 0, 0)
    busy(0.01)
    assert free.left_s() == 0
    declared.begin(1, 0, 0)
    assert 40 < declared.left_s() <= 50
    both = Pass(Compute(mean_s=50), "a", 0.9)
    both.begin(1, 0, 0)
    assert 40 < both.left_s() <= 50, "not the sum"


def test_the_environment_says_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPU_SHARE, raising=False)
    assert cpu_share() == 1
    monkeypatch.setenv(CPU_SHARE, "0.25")
    assert cpu_share() == 0.25
    for text in ("0", "2", "half", "nan"):
        monkeypatch.setenv(CPU_SHARE, text)
        with pytest.raises(UsageError, match=CPU_SHARE):
            cpu_share()
