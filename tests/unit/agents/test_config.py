"""Addresses and configuration: what would not work is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.config import AddressBook, Config
from topologies.addressing import Management
from topologies.errors import InvalidFileError, UsageError
from topologies.load import load_topology


def book(*hosts: str) -> AddressBook:
    return AddressBook(tuple((host, 7000) for host in hosts), ("10.199.0.253", 7002), (None,) * len(hosts))


def test_the_addresses_of_a_testbed() -> None:
    addresses = AddressBook.of_testbed(3, Management("10.199.4.0/24"))
    assert addresses.data == (("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000))
    assert addresses.coordinator == ("10.199.4.253", 7002)
    assert addresses.metrics[2] == ("10.199.4.3", 9101)
    assert addresses.coordinator_metrics == ("10.199.4.253", 9102)
    assert AddressBook.from_dict(json.loads(json.dumps(addresses.to_dict()))) == addresses


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (("10.0.0.1", "0.0.0.0"), "site 1 cannot be reached at 0.0.0.0"),
        (("127.0.0.1", "10.0.0.2"), "site 0 is at 127.0.0.1, where the other sites cannot reach it"),
        (("10.0.0.1", "10.0.0.1"), "two agents listen at the same address"),
    ],
)
def test_addresses_that_peers_could_not_use(hosts: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        book(*hosts)


def test_loopback_is_fine_when_all_use_it() -> None:
    assert book("127.0.0.1", "127.0.0.2").data[1] == ("127.0.0.2", 7000)


def test_loading_from_a_testbeds_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"there is no .*testbed\.json .*is the testbed up"):
        Config.load(tmp_path)
    (tmp_path / "testbed.json").write_text("{")
    with pytest.raises(InvalidFileError, match="is not JSON"):
        Config.load(tmp_path)
    state: dict[str, Any] = {"topology": load_topology("triangle").to_dict()}
    (tmp_path / "testbed.json").write_text(json.dumps(state))
    with pytest.raises(InvalidFileError, match="does not describe a testbed: KeyError"):
        Config.load(tmp_path)
    (tmp_path / "testbed.json").write_text(json.dumps({**state, "subnet": "10.199.7.0/24"}))
    config = Config.load(tmp_path)
    assert config.addresses.coordinator == ("10.199.7.253", 7002) and len(config.addresses.data) == 3
    (tmp_path / "addresses.json").write_text(json.dumps(book("127.0.0.1", "127.0.0.2").to_dict()))
    with pytest.raises(UsageError, match="2 addresses for the 3 sites of triangle"):
        Config.load(tmp_path)


def test_first_hops_follow_the_paths() -> None:
    topology = load_topology("netstorm-9")
    config = Config(topology, AddressBook.of_testbed(9, Management("10.199.0.0/24")), Path())
    for site in range(9):
        for (dst, number), hop in config.first_hops(site).items():
            assert hop in topology.neighbours(site)
            assert config.paths[site, dst][number][1] == hop
