from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation import management
from testbed.emulation.rundir import RunDir
from topologies.addressing import Management
from topologies.errors import CannotHonourError


def test_the_first_free_subnet_is_taken() -> None:
    assert management.choose_subnet([]).subnet == "10.199.0.0/24"
    taken = ["127.0.0.1/8", "10.199.0.254/24", "10.199.1.0/24", "default", "10.199.2.7"]
    assert management.choose_subnet(taken).subnet == "10.199.3.0/24"


def test_wide_routes_of_the_machine_are_not_in_the_way() -> None:
    assert management.choose_subnet(["10.0.0.0/8", "0.0.0.0/0"]).subnet == "10.199.0.0/24"


def test_when_all_are_taken_it_says_so() -> None:
    assert management.choose_subnet(["10.199.0.0/16"]).subnet == "10.198.0.0/24"
    with pytest.raises(CannotHonourError, match=r"10.199.0.0/16 and 10.198.0.0/16 is in use .*ip route"):
        management.choose_subnet(["10.199.0.0/16", "10.198.0.0/16"])


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=200))
def test_interface_names_fit_the_kernel(name: str) -> None:
    interface = management.interface_name(RunDir(Path("/run/stormbed") / name))
    assert len(interface) <= 15 and interface.startswith("sb") and interface.endswith("-m")


def test_the_same_name_below_another_root_is_another_interface() -> None:
    one, two = RunDir(Path("/run/stormbed/x")), RunDir(Path("/tmp/r/x"))
    assert management.interface_name(one) != management.interface_name(two)


def test_lines() -> None:
    addresses = Management("10.199.7.0/24")
    lines = management.reserve_lines("sb12345678-m", addresses, ipv6=True)
    assert lines[0] == "link add name sb12345678-m type veth peer name sb12345678-i"
    assert "addr add 10.199.7.254/24 dev sb12345678-m" in lines
    assert any("addrgenmode" in line for line in lines)
    assert not any("addrgenmode" in line for line in management.reserve_lines("x-m", addresses, ipv6=False))
    assert management.enter_lines("sb12345678-m", 42)[0] == "link set dev sb12345678-i netns 42 name mgmt-up"
    assert any("addr add 10.199.7.253/24 dev mgmt" in line for line in management.bridge_lines(addresses))
    assert management.site_lines(2, 99)[0] == "link add name m3 type veth peer name mgmt netns 99"
