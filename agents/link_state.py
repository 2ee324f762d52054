"""Links that are down, as the controller tells: what that makes of paths, primaries and rates; and who asks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from agents.declared_network import DeclaredNetwork
from topologies.paths import Hop, Path, hops_of, is_intact, primaries

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 20
# A controller that does not answer is asked again after so long; the switches keep their rules meanwhile.
RETRY_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 10.0
MAX_ANSWER: Final = 1 << 20


class NetworkNow:
    """A declared network without the links that are down. Pure.

    Attributes:
        declared: the network as declared.
        down: indexes of the links that are down, in the topology's list.
        cut: both directions of them.
    """

    def __init__(self, declared: DeclaredNetwork) -> None:
        self.declared = declared
        self.down: frozenset[int] = frozenset()
        self.cut: frozenset[Hop] = frozenset()
        self._primaries: Mapping[tuple[int, int], Path | None] = {}

    def change(self, down: Iterable[int]) -> frozenset[Hop]:
        """These links are down now, and no others; the directions that failed or returned."""
        before, topology = self.cut, self.declared.topology
        self.down = frozenset(down)
        self.cut = hops_of(topology, self.down)
        self._primaries = primaries(topology, self.declared.paths, self.down) if self.down else {}
        return before ^ self.cut

    def primary(self, src: int, dst: int) -> Path | None:
        """Where the network sends absent path numbers now; None for sites that are parted."""
        return self._primaries[src, dst] if self.down else self.declared.paths[src, dst][0]

    def intact(self, src: int, dst: int, number: int) -> bool:
        """Whether the pair has this path and none of its links is down."""
        paths = self.declared.paths[src, dst]
        return 0 <= number < len(paths) and (not self.cut or is_intact(paths[number], self.cut))

    def path(self, src: int, dst: int, number: int) -> Path | None:
        """The way that packets with this number take now."""
        return self.declared.paths[src, dst][number] if self.intact(src, dst, number) else self.primary(src, dst)

    def rates(self, rates: Mapping[Hop, float]) -> Mapping[Hop, float]:
        """The same, and 0 for what is down."""
        return {hop: 0.0 if hop in self.cut else bps for hop, bps in rates.items()} if self.cut else rates

    def first_hops_to(self, src: int, dst: int) -> list[int]:
        """By path number: the neighbour where that way leaves `src` now."""
        paths = self.declared.paths[src, dst]
        return [(self.path(src, dst, number) or path)[1] for number, path in enumerate(paths)]

    def first_hops(self, site: int) -> dict[tuple[int, int], int]:
        """The same for every destination, by (destination, path number)."""
        return {
            (dst, number): hop
            for src, dst in self.declared.paths
            if src == site
            for number, hop in enumerate(self.first_hops_to(src, dst))
        }


class LinkFollower:
    """Asks the controller for the links that are down, and again when that changes (it answers then).

    Args:
        endpoint: host and port of the controller's HTTP interface.
        names: gives a link's index by the names of its ends.
        on_change: told the indexes of the links that are down, at first and with every change.
    """

    def __init__(
        self,
        endpoint: tuple[str, int],
        names: Mapping[frozenset[str], int],
        on_change: Callable[[frozenset[int]], None],
    ) -> None:
        self._endpoint = endpoint
        self._names = names
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        token, told = "", None
        while True:
            try:
                answer = await self._ask(token)
                down = frozenset(self._names[frozenset(ends)] for ends in answer["down"])
                token = str(answer["token"])
            except (OSError, TimeoutError, EOFError, ValueError, KeyError, TypeError) as error:
                log.debug("the controller does not tell its links: %r", error)
                token = ""
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if down != told:
                told = down
                self._on_change(down)

    async def _ask(self, token: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_SECONDS + ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*self._endpoint)
            try:
                target = f"/links?since={token}&wait={WAIT_SECONDS}"
                host = f"{self._endpoint[0]}:{self._endpoint[1]}"
                writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                text = await reader.read(MAX_ANSWER)
                while more := await reader.read(MAX_ANSWER):
                    text += more
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        head, _, body = text.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise ValueError(f"the controller answers {head[:80]!r}")
        answer = json.loads(body)
        if not isinstance(answer, dict):
            raise ValueError("the controller's answer is no map")
        return answer


def link_names(declared: DeclaredNetwork) -> dict[frozenset[str], int]:
    """A link's index in the topology's list by the names of its ends."""
    return {frozenset(link.endpoints): k for k, link in enumerate(declared.topology.links)}
