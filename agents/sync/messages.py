"""Everything that crosses between the machines, as frozen data.

`ChunkMessage` goes from site to site over the WAN. `Ready`, `PlanAck` and `Abort` go from a site to the
coordinator, `Release`, `Announce` and `Abort` from the coordinator to the sites, `TransferMessage` and
`SwitchMessage` both ways. How they are laid out on the wire is the transport's matter; `control_to_dict` and
`control_from_dict` give plain values (msgpack or JSON) for the control messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agents.sync.payload import Payload
from agents.sync.policy import Policy
from topologies.errors import RunFailedError

Direction = Literal["up", "down"]


class ProtocolError(RunFailedError):
    """A message that a correct peer cannot have sent. The job stops with this as its named cause."""


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """One chunk on one hop of its tree.

    job, seq   the collective        version  the policy under which `tree` has a meaning
    chunk      index in the collective's chunk table (`Policy.chunk_table`); `part` is that chunk's part
    direction  "up": a partial sum for the parent; "down": the result for a child
    src        the site that sent this hop      tree   index of the policy's tree; where transfers are decided
                                                       one by one, the number of the attempt

    Deduplicated by (job, seq, chunk, src, direction). The order on a link is a function of
    (seq, tree, chunk, direction, src, receiver), see `Policy.link_key`.
    """

    job: str
    seq: int
    version: int
    part: int
    chunk: int
    direction: Direction
    src: int
    tree: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Ready:
    """Site to coordinator: all workers of `site` have submitted collective `seq`.

    digest, summary  fingerprint and one-line description of the collective as this site sees it
    completed        every collective with a number below this is complete at this site
    """

    job: str
    site: int
    seq: int
    digest: str
    summary: str
    completed: int


@dataclass(frozen=True, slots=True)
class PlanAck:
    """Site to coordinator: policy `version` is installed."""

    job: str
    site: int
    version: int


@dataclass(frozen=True, slots=True)
class Release:
    """Coordinator to every site: collective `seq` runs under policy `version`.

    policy         the policy itself the first time that its version is used, else None
    retired_below  every site has installed this version and completed all collectives of the older ones, so
                   older policies may be dropped
    """

    job: str
    seq: int
    version: int
    policy: Policy | None
    retired_below: int = 0


@dataclass(frozen=True, slots=True)
class Announce:
    """Coordinator to every site: the policies of all collectives below `below` are settled, so these begin
    without a release.

    number         grows with every announcement: of two the larger one counts, whichever comes first
    version        the newest policy there is; a site that has not got all up to it waits for them
    policy         a new policy, which holds from its own `from_seq` on; else None
    retired_below  as in `Release`
    """

    job: str
    below: int
    version: int
    policy: Policy | None
    retired_below: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The job stops for the named cause: from a site (then `site` is set), or from the coordinator to all."""

    job: str
    cause: str
    site: int | None = None


TransferVerb = Literal["offer", "send", "merged", "received", "cancel", "cancelled", "final", "closed"]


@dataclass(frozen=True, slots=True)
class TransferMessage:
    """Of a collective whose transfers are decided one by one; `site` is the one it comes from or goes to.

    Site to coordinator:
      offer      this site's own contributions to `chunks` are there; the collective has `total` chunks of at
                 most `nbytes`
      merged     the partial sum of a chunk from `peer` (its attempt) was added here
      received   the result of a chunk came from `peer` (its attempt)
      cancelled  the partial sum of that attempt will not be added here any more
    Coordinator to site:
      send       send the partial sum (up) or the result (down) of a chunk to `peer`
      cancel     do not add the partial sum of that attempt, if it has not been added yet
      final      the partial sum here is the result
      closed     every site has every result
    """

    job: str
    site: int
    seq: int
    verb: TransferVerb
    chunks: tuple[int, ...] = ()
    direction: Direction = "up"
    peer: int = -1
    attempt: int = 0
    total: int = 0
    nbytes: int = 0

    @property
    def chunk(self) -> int:
        """The only chunk."""
        (chunk,) = self.chunks
        return chunk


@dataclass(frozen=True, slots=True)
class SwitchMessage:
    """Of a change of plan inside a collective; `site` is the one it comes from or goes to.

    Coordinator to site:
      ask      from which chunk on has nothing been sent, and keep to that
      switch   chunks from `limit` on run under `policy`, or as before where there is none
    Site to coordinator:
      promise  chunks from `limit` on have not been begun here and will not be before the switch; the
               collective has `total` chunks
    `number` tells one change of plan from another.
    """

    job: str
    site: int
    seq: int
    verb: Literal["ask", "promise", "switch"]
    number: int
    limit: int = 0
    total: int = 0
    policy: Policy | None = None


ToCoordinator = Ready | PlanAck | Abort | TransferMessage | SwitchMessage
ToSite = Release | Announce | Abort | TransferMessage | SwitchMessage


def disagreement(job: str, site_names: Sequence[str], seq: int, gathered: Mapping[int, Ready]) -> str:
    """What to say where sites are ready for different collectives under one number."""
    groups: dict[str, list[int]] = {}
    for site in sorted(gathered):
        groups.setdefault(gathered[site].digest, []).append(site)
    claims = [
        f"{', '.join(site_names[site] for site in sites)} submitted {gathered[sites[0]].summary}"
        for sites in groups.values()
    ]
    return f"the sites do not agree on collective {seq} of job {job}: {'; '.join(claims)}"


def control_to_dict(message: ToCoordinator | ToSite) -> dict[str, Any]:
    """A control message as plain values; `type` names the class."""
    plain: dict[str, Any] = {"type": type(message).__name__.lower()}
    for name in message.__slots__:
        value = getattr(message, name)
        plain[name] = value.to_dict() if isinstance(value, Policy) else value
    return plain


def control_from_dict(plain: dict[str, Any]) -> ToCoordinator | ToSite:
    """The inverse of `control_to_dict`. ProtocolError when it is no control message."""
    fields = dict(plain)
    kind = fields.pop("type", None)
    types: dict[Any, type[Any]] = {
        "ready": Ready,
        "planack": PlanAck,
        "release": Release,
        "announce": Announce,
        "abort": Abort,
        "transfermessage": TransferMessage,
        "switchmessage": SwitchMessage,
    }
    if kind not in types:
        raise ProtocolError(f"unknown control message {kind!r}")
    if "chunks" in fields:
        fields["chunks"] = tuple(fields["chunks"])
    if fields.get("policy") is not None:
        fields["policy"] = Policy.from_dict(fields["policy"])
    try:
        message: ToCoordinator | ToSite = types[kind](**fields)
    except TypeError as error:
        raise ProtocolError(f"malformed {kind} message: {error}") from None
    return message
