"""What an agent or the coordinator must know before it starts: the network, and everybody's addresses."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.declared_network import DeclaredNetwork
from topologies import addressing
from topologies.errors import InvalidFileError, UsageError
from topologies.load import topology_from_dict

Endpoint = tuple[str, int]


@dataclass(frozen=True)
class AddressBook:
    """Who listens where.

    data                where each site's agent takes chunks (WAN); it also sends from that address
    coordinator         where the coordinator takes agents: on the management network, or on the WAN where it
                        runs at a site
    controller          where the controller answers over HTTP; None: links that fail are not followed
    runner              where it takes runners, always on the management network; None: where it takes agents
    metrics             where each site's agent serves its metrics; None serves none
    coordinator_metrics the same of the coordinator

    Raises UsageError for addresses that would not do: 0.0.0.0, or loopback for some sites but not for all.
    """

    data: tuple[Endpoint, ...]
    coordinator: Endpoint
    metrics: tuple[Endpoint | None, ...]
    coordinator_metrics: Endpoint | None = None
    runner: Endpoint | None = None
    controller: Endpoint | None = None

    def __post_init__(self) -> None:
        if len(self.metrics) != len(self.data):
            raise UsageError(f"{len(self.metrics)} addresses for metrics of {len(self.data)} agents")
        hosts = [ipaddress.IPv4Address(host) for host, _ in self.data]
        for site, host in enumerate(hosts):
            if host.is_unspecified or host.is_multicast:
                raise UsageError(f"site {site} cannot be reached at {host}", hint="name its WAN address")
        loopback = [host.is_loopback for host in hosts]
        if any(loopback) and not all(loopback):
            site = loopback.index(True)
            raise UsageError(f"site {site} is at {hosts[site]}, where the other sites cannot reach it")
        if len(set(self.data)) != len(self.data):
            raise UsageError("two agents listen at the same address")

    @classmethod
    def of_testbed(
        cls, n_sites: int, management: addressing.Management, coordinator: int | None = None
    ) -> AddressBook:
        """The addresses of an emulated testbed, its coordinator at a site or (None) out of band."""
        metrics = [(management.site(k), addressing.AGENT_METRICS_PORT) for k in range(n_sites)]
        own = management.supervisor if coordinator is None else management.site(coordinator)
        reached = own if coordinator is None else addressing.wan_ip(coordinator)
        return cls(
            data=tuple((addressing.wan_ip(k), addressing.AGENT_DATA_PORT) for k in range(n_sites)),
            coordinator=(reached, addressing.COORDINATOR_PORT),
            metrics=tuple(metrics),
            coordinator_metrics=(own, addressing.COORDINATOR_METRICS_PORT),
            runner=None if coordinator is None else (own, addressing.COORDINATOR_PORT),
            controller=(management.supervisor, addressing.CONTROLLER_HTTP_PORT),
        )

    @property
    def for_runners(self) -> Endpoint:
        """Where runners find the coordinator."""
        return self.runner or self.coordinator

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the inverse of `from_dict`."""
        return {
            "data": self.data,
            "coordinator": self.coordinator,
            "metrics": self.metrics,
            "coordinator_metrics": self.coordinator_metrics,
            "runner": self.runner,
            "controller": self.controller,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> AddressBook:
        def endpoint(value: Any) -> Endpoint | None:
            return None if value is None else (str(value[0]), int(value[1]))

        data = tuple((str(host), int(port)) for host, port in plain["data"])
        coordinator = (str(plain["coordinator"][0]), int(plain["coordinator"][1]))
        metrics = tuple(endpoint(value) for value in plain["metrics"])
        runner = endpoint(plain.get("runner"))
        controller = endpoint(plain.get("controller"))
        return cls(data, coordinator, metrics, endpoint(plain["coordinator_metrics"]), runner, controller)


@dataclass(frozen=True)
class Config(DeclaredNetwork):
    """The network, the addresses, and where the testbed keeps its files."""

    addresses: AddressBook
    run_dir: Path

    def __post_init__(self) -> None:
        if len(self.addresses.data) != len(self.topology.site_names):
            raise UsageError(
                f"{len(self.addresses.data)} addresses for the {len(self.topology.site_names)} sites "
                f"of {self.topology.name}"
            )

    @classmethod
    def load(cls, run_dir: Path) -> Config:
        """From a testbed's directory: `testbed.json`, and `addresses.json` where that replaces the usual

        ones.
        """
        state = _read_json(run_dir / "testbed.json")
        try:
            topology = topology_from_dict(state["topology"], source=str(run_dir / "testbed.json"))
            special = run_dir / "addresses.json"
            if special.exists():
                addresses = AddressBook.from_dict(_read_json(special))
            else:
                management = addressing.Management(state["subnet"])
                at = state.get("coordinator_site")
                coordinator = None if at is None else topology.index(at)
                addresses = AddressBook.of_testbed(len(topology.site_names), management, coordinator)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidFileError(f"{run_dir} does not describe a testbed: {error!r}") from None
        return cls(topology, addresses, run_dir)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidFileError(f"there is no {path}", hint="is the testbed up?") from None
    except ValueError as error:
        raise InvalidFileError(f"{path} is not JSON: {error}") from None
