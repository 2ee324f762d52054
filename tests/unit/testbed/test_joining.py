"""Waiting for workers to join, with a real coordinator, agents and workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from testbed.experiments.joining import await_joined
from topologies.errors import DeadlineError, RunFailedError

from ..agents.conftest import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with closing(Cluster(tmp_path)) as made:
        yield made


def nothing() -> None:
    """All goes well."""


def test_all_workers_of_all_jobs_are_waited_for(cluster: Cluster) -> None:
    runner = cluster.runner()
    for job in ("a", "b"):
        runner.open_job({"job": job, "sites": {"dc1": 1, "dc2": 1}})
    said: list[str] = []
    with ExitStack() as workers:

        def join() -> None:
            for job, site in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
                workers.enter_context(cluster.join(site, job))

        joining = threading.Thread(target=join)

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 1:
                joining.start()

        await_joined(cluster.runner(), ["a", "b"], 4, check=nothing, say=say, of=" of trials")
        joining.join()
    assert said[0] == "0 of 4 workers of trials have joined"
    assert said[-1] == "4 of 4 workers of trials have joined"


def test_a_job_that_stops_ends_the_waiting_in_its_words(cluster: Cluster) -> None:
    runner = cluster.runner()
    for job in ("a", "b"):
        runner.open_job({"job": job, "sites": {"dc1": 1, "dc2": 1}})
    runner.abort("b", "somebody stumbled")
    with pytest.raises(RunFailedError, match="job b stopped before it began: somebody stumbled"):
        await_joined(runner, ["a", "b"], 4, check=nothing, say=lambda text: None)
    with pytest.raises(RunFailedError, match="job c stopped before it began: the coordinator has it no more"):
        await_joined(runner, ["a", "c"], 4, check=nothing, say=lambda text: None)


def test_who_does_not_come_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    runner = cluster.runner()
    runner.open_job({"job": "a", "sites": {"dc1": 1, "dc2": 1}})
    with (
        cluster.join(0, "a"),
        pytest.raises(DeadlineError, match=r"waited 1 s for 1 of 2 workers to join in vain"),
    ):
        await_joined(runner, ["a"], 2, check=nothing, say=lambda text: None, deadline_s=1.0)


def test_a_check_that_fails_ends_the_waiting(cluster: Cluster) -> None:
    runner = cluster.runner()
    runner.open_job({"job": "a", "sites": {"dc1": 1, "dc2": 1}})

    def check() -> None:
        raise RunFailedError("worker dc1-0 ended with status 1")

    with pytest.raises(RunFailedError, match="worker dc1-0 ended"):
        await_joined(runner, ["a"], 2, check=check, say=lambda text: None)
