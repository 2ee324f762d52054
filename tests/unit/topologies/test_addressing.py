import pytest

from topologies import addressing, dscp
from topologies.addressing import Management
from topologies.errors import UsageError
from topologies.load import load_topology


def test_the_tos_byte_carries_path_and_class_both_ways() -> None:
    seen = set()
    for path in range(8):
        for cls in range(8):
            tos = dscp.encode(path, cls)
            assert tos == path << 5 | cls << 2
            assert dscp.decode(tos) == dscp.decode(tos | 3) == (path, cls)
            seen.add(tos)
    assert len(seen) == 64 and max(seen) <= 255


@pytest.mark.parametrize(("path", "cls"), [(8, 0), (-1, 0), (0, 8), (0, -1)])
def test_paths_and_classes_out_of_range(path: int, cls: int) -> None:
    with pytest.raises(UsageError):
        dscp.encode(path, cls)


def test_tos_out_of_range() -> None:
    with pytest.raises(UsageError):
        dscp.decode(256)


def test_addresses_are_distinct_and_well_formed() -> None:
    sites = range(1000)
    assert len({addressing.wan_ip(k) for k in sites}) == 1000
    assert len({addressing.wan_mac(k) for k in sites}) == 1000
    assert addressing.wan_ip(0) == "10.0.0.1"
    assert addressing.wan_ip(250) == "10.0.1.1"
    assert addressing.wan_mac(0) == "02:53:42:00:00:01"
    assert addressing.dpid(0) == 1
    assert int(addressing.wan_mac(0)[:2], 16) & 3 == 2  # unicast, locally administered


def test_interface_names_are_short_and_distinct() -> None:
    names = [
        name
        for i in range(3000)
        for name in (
            addressing.switch_name(i),
            addressing.host_intf(i),
            addressing.switch_host_intf(i),
            addressing.wan_intf(i, 0),
            addressing.wan_intf(i, 1),
            addressing.delay_intf(i, 0),
            addressing.delay_intf(i, 1),
        )
    ]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 15


def test_ports_follow_the_links_of_the_file() -> None:
    topology = load_topology("netstorm-9")
    assert [addressing.wan_port(topology, 0, v) for v in (1, 2)] == [2, 3]
    assert [addressing.wan_port(topology, 5, v) for v in (3, 6, 7, 8)] == [2, 3, 4, 5]
    for k in range(9):
        ports = [addressing.wan_port(topology, k, v) for v in topology.neighbours(k)]
        assert sorted(ports) == list(range(2, 2 + len(ports)))
        assert addressing.HOST_PORT not in ports
    with pytest.raises(UsageError, match="dc1 and dc9"):
        addressing.wan_port(topology, 0, 8)


def test_management_addresses() -> None:
    management = Management("10.199.3.0/24")
    assert management.gateway == "10.199.3.254"
    assert management.supervisor == "10.199.3.253"
    assert [management.site(k) for k in (0, 249)] == ["10.199.3.1", "10.199.3.250"]
    with pytest.raises(UsageError):
        management.site(250)
    for wrong in ("10.199.3.0/16", "10.199.3.1/24", "nonsense", "fd00::/64"):
        with pytest.raises(UsageError):
            Management(wrong)
