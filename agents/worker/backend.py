"""How torch finds the backend `stormbed`: its registration, its options, its rendezvous."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from agents.worker.process_group import BACKEND, StormbedProcessGroup
from topologies.errors import StormbedError

if TYPE_CHECKING:
    from agents.local import LocalClient


@dataclass
class Options:
    """`pg_options` of `init_process_group("stormbed")`.

    Attributes:
        client: a connection to this site's agent that exists already; the group leaves it open when it ends.
            None: the group makes its own from the environment (STORMBED_RUN_DIR, STORMBED_SITE,
            STORMBED_JOB, STORMBED_WORKER) and closes it.
    """

    client: LocalClient | None = None


def create(options: Any, pg_options: Options | None = None) -> StormbedProcessGroup:
    """Makes the group for `init_process_group` and `new_group`.

    Args:
        options: torch's `_DistributedBackendOptions`.
        pg_options: what the caller gave, or None.
    """
    ranks: list[int] = list(options.global_ranks_in_group)
    if ranks:
        world = dist.get_world_size()
        if ranks != list(range(world)):
            raise RuntimeError(
                f"stormbed has no group of the ranks {ranks}, only of all {world}: "
                "leave out `ranks`, or give new_group(ranks, backend='gloo')"
            )
        default = dist.group.WORLD
        if isinstance(default, StormbedProcessGroup):
            return StormbedProcessGroup(default.client, options.timeout)

    if pg_options is not None and not isinstance(pg_options, Options):
        given = type(pg_options).__name__
        raise RuntimeError(f"pg_options of stormbed are agents.worker.Options, not {given}")
    client = pg_options.client if pg_options is not None else None
    owned = client is None
    if client is None:
        # Not needed before: whoever imports torch alone pays nothing for the client.
        from agents.local import LocalClient

        try:
            client = LocalClient.from_env()
        except StormbedError as error:
            raise dist.DistBackendError(f"stormbed: {error}") from error
    if (options.group_rank, options.group_size) != (client.rank, client.world_size):
        here, there = (options.group_rank, options.group_size), (client.rank, client.world_size)
        if owned:
            client.close()
        raise RuntimeError(
            f"stormbed: this process says it is rank {here[0]} of {here[1]}, its agent says {there[0]} of "
            f"{there[1]}: leave RANK and WORLD_SIZE as the testbed set them"
        )
    group = StormbedProcessGroup(client, options.timeout, owned=owned)
    # A script that ends without destroy_process_group must not leave threads behind in a dying interpreter.
    atexit.register(group.shutdown)
    return group


def _rendezvous(url: str, **_kwargs: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """`init_method="stormbed://"`: rank and size from the environment, and a store for this process alone.

    The backend needs no store, so no address of a master has to be known.
    """
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError as missing:
        name = missing.args[0]
        raise RuntimeError(
            f"stormbed:// needs {name} in the environment: start the script at a site"
        ) from None
    yield dist.HashStore(), rank, world
    raise RuntimeError("stormbed:// has no second rendezvous")


def register() -> None:
    """Makes `stormbed` known to torch. Called on import, and by torch itself through the entry point."""
    if BACKEND.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    dist.register_rendezvous_handler(BACKEND, _rendezvous)
