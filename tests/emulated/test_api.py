"""`Testbed` on a real testbed: what a script may rely on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed import Testbed
from testbed.runner import CommandError
from testbed.standing import standing
from topologies.errors import DeadlineError, UsageError
from topologies.model import Topology
from topologies.units import Rate

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def testbed(unique_name: Callable[[], str]) -> Iterator[Testbed]:
    with Testbed.up("triangle", name=unique_name(), scale=0.5, calibrate=False) as testbed:
        yield testbed


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def pids(testbed: Testbed, site: str, *argv: str) -> list[int]:
    return [
        process["pid"]
        for process in testbed.sites[site].processes()
        if process["argv"] == list(argv) and process["status"] is None
    ]


def test_it_stands_as_it_was_asked_for(testbed: Testbed) -> None:
    assert testbed.topology.rates()[0, 1] == 50e6
    assert list(testbed.sites) == ["dc1", "dc2", "dc3"]
    assert [site.index for site in testbed.sites.values()] == [0, 1, 2]
    assert testbed.ssh_config.exists()
    assert Testbed.attach(testbed.name).sites["dc2"].wan_ip == testbed.sites["dc2"].wan_ip


def test_a_command_runs_at_the_site_with_the_sites_environment(testbed: Testbed) -> None:
    site = testbed.sites["dc2"]
    assert site.run(["hostname"]).stdout == "dc2\n"
    assert site.run(["pwd"]).stdout.strip() == str(testbed.run_dir / "sites" / "dc2" / "home")
    assert site.run(["sh", "-c", 'echo "$STORMBED_SITE $X"'], env={"X": "1 2"}).stdout == "dc2 1 2\n"
    assert site.run(["cat"], input="in").stdout == "in"


def test_a_command_that_fails_says_so_unless_asked_not_to(testbed: Testbed) -> None:
    with pytest.raises(CommandError, match="status 3: alas"):
        testbed.sites["dc1"].run(["sh", "-c", "echo alas >&2; exit 3"])
    assert testbed.sites["dc1"].run(["false"], check=False).returncode == 1


def test_a_command_that_takes_too_long_is_ended_with_its_children(testbed: Testbed) -> None:
    with pytest.raises(DeadlineError):
        testbed.sites["dc1"].run(["sh", "-c", "sleep 654 & sleep 654"], timeout=1)
    assert eventually(lambda: not pids(testbed, "dc1", "sleep", "654"))


def test_a_started_process_goes_on_and_is_killed_even_if_it_will_not_go(testbed: Testbed) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done"]
    log = testbed.run_dir / "sites" / "dc3" / "stubborn.log"
    pid = testbed.sites["dc3"].start(stubborn, env={"X": "1"}, log=log)
    # Its children bear the same words until they have become `sleep`.
    assert pid in pids(testbed, "dc3", *stubborn), "it is there when its pid is told"
    assert eventually(lambda: log.exists() and log.read_text() == "ready\n")
    testbed.sites["dc3"].kill(pid, grace=0.5)
    assert pid not in pids(testbed, "dc3", *stubborn)


def test_a_link_is_set_by_text_or_value_and_reset(testbed: Testbed) -> None:
    link = testbed.link("dc1", "dc2")
    link.set(rate="20mbit", delay="30ms")
    assert [(row["src"], row["rate_bps"], row["delay_s"]) for row in link.show()] == [
        ("dc1", 20e6, 0.03),
        ("dc2", 20e6, 0.03),
    ]
    link.set(rate=Rate(10_000_000), one_way=True)
    assert [row["rate_bps"] for row in link.show()] == [10e6, 20e6]
    link.reset()
    assert [(row["rate_bps"], row["delay_s"]) for row in link.show()] == [(50e6, 0.01), (50e6, 0.01)]


def test_wrong_names_and_units_are_refused(testbed: Testbed) -> None:
    with pytest.raises(UsageError, match="no site 'dc9'"):
        testbed.link("dc1", "dc9")
    with pytest.raises(UsageError, match="nothing to change"):
        testbed.link("dc1", "dc2").set()
    with pytest.raises(UsageError, match="no unit"):
        testbed.link("dc1", "dc2").set(rate="20")
    with pytest.raises(UsageError, match="is up already"):
        Testbed.up("pair", name=testbed.name)


def test_it_is_taken_down_after_an_exception_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    network = Topology.model_validate(
        {
            "name": "Two.Sites",
            "sites": {"a": {}, "b": {}},
            "links": [{"endpoints": ["a", "b"], "rate": "10mbit"}],
        }
    )
    said: list[str] = []
    with (
        pytest.raises(ZeroDivisionError),
        Testbed.up(network, calibrate=False, on_progress=said.append) as brief,
    ):
        assert [info.name for info in standing()] == ["two-sites"]
        raise ZeroDivisionError
    assert standing() == ()
    assert not brief.run_dir.exists()
    assert "Open vSwitch" in said
    brief.down()  # a second time is no error
    with pytest.raises(UsageError, match="no testbed is up"):
        Testbed.attach()
