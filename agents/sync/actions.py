"""What a machine asks its runtime to do, in the order returned."""

from __future__ import annotations

from dataclasses import dataclass

from agents.chunks import Chunk
from agents.sync.messages import ChunkMessage, ToCoordinator, ToSite
from agents.sync.payload import Payload


@dataclass(frozen=True, slots=True)
class Send:
    """Send a chunk to site `dst` over the network path number `path` (0 = the primary).

    priority  of the messages waiting for the same peer the smallest goes first; equal ones in the order given
              here
    cls       the class by which it goes over the network
    """

    dst: int
    message: ChunkMessage
    path: int
    priority: tuple[float, int]
    cls: int = 0


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message to the coordinator."""

    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class Deliver:
    """The final content of `chunk`, for this site's workers. The payload is only read from now on."""

    seq: int
    chunk: Chunk
    payload: Payload


@dataclass(frozen=True, slots=True)
class Complete:
    """Collective `seq` is over at this site: all delivered, nothing left to forward, its state dropped."""

    seq: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Collective `seq` will never complete; `cause` says why."""

    seq: int
    cause: str


SiteAction = Send | SendControl | Deliver | Complete | Failed


@dataclass(frozen=True, slots=True)
class SendToSite:
    """From the coordinator: send a control message to site `dst`."""

    dst: int
    message: ToSite


CoordinatorAction = SendToSite


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a machine waits for. `str()` reads well after "waited for"; `sites` are those to look at."""

    text: str
    sites: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text
