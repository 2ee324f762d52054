"""The frame of runs on a testbed, as far as it goes without one: with a coordinator, and nobody behind the links."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from testbed.emulation.rundir import SiteInfo, TestbedInfo
from testbed.experiments.emulated import EmulatedRun
from testbed.experiments.manifest import read_manifest
from testbed.experiments.on_testbed import RunOnTestbed
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment, open_experiment
from testbed.searches.emulated import EmulatedSearch
from topologies.errors import RunFailedError

from ..agents.conftest import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    with closing(Cluster(tmp_path / "cluster")) as made:
        yield made


def described(experiment: LoadedExperiment, cluster: Cluster) -> TestbedInfo:
    """A testbed whose management network is the cluster's loopback block; there is no supervisor in it."""
    names = experiment.topology.site_names
    block = cluster.addresses.coordinator[0].rpartition(".")[0]
    return TestbedInfo(
        name="gone",
        created_s=0.0,
        state="up",
        topology=experiment.topology.to_dict(),
        subnet=f"{block}.0/24",
        interface="none",
        sites={name: SiteInfo(index=k, wan_ip="10.0.0.1", mgmt_ip=f"{block}.1") for k, name in enumerate(names)},
    )


@pytest.mark.parametrize(("name", "kind"), [("quickstart", EmulatedRun), ("searches", EmulatedSearch)])
def test_a_run_on_a_testbed_that_has_gone_says_so_and_ends_its_directory(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[RunOnTestbed]
) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path / "root"))
    experiment = open_experiment(name)
    info = described(experiment, cluster)
    assert info.coordinator == cluster.addresses.coordinator, "what is there of the testbed is its coordinator"
    with (
        RunDirectory(tmp_path / "run", experiment, "emulated") as run,
        pytest.raises(RunFailedError, match="the testbed gone ended during the run, with everything in it"),
    ):
        kind(experiment, info, run, lambda text: None).execute()
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "failed" and manifest.failure is not None
    assert "ended during the run" in manifest.failure.message and manifest.failure.exit_code == 5
    # What cannot be kept is noted, one by one, and hides nothing of the failure.
    assert any("events.jsonl could not be kept" in note for note in manifest.notes)
    assert any("the metrics could not be kept" in note for note in manifest.notes)
    assert cluster.call(lambda: cluster.coordinator.jobs) == {}
