"""The coordinator's side of collectives whose transfers are decided one by one.

It knows, for every chunk, which contributions the partial sum at each site holds and who has the result; it
tells a `Decider` what happened and orders what it answers. A site has one transfer under way at a time, so
that the time of a transfer says something about the link. Sums that a decider has paired go first, in order;
then the site's results, oldest chunk first.

Nothing waits for ever. Every transfer has a lease: the least time, or five times what the last rate of the
pair would take, doubled with every failure of the sender in a row. When it ends
* of a result: its receiver becomes a candidate again, the sender is free. A result that arrives twice changes
  nothing.
* of a partial sum: the receiver is asked to cancel. It answers that the sum will not be added, and both wait
  to be paired again; or its report that it was added is ahead of the answer.
A receiver that answers neither within the least time, or a sender of whose transfers `TRIES` in a row did not
arrive, stops the job with that as its cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agents.planning.transfers import Event, Holds, Key, Measured, Ready, Returned, Transfer, TransferRule
from agents.sync.actions import Waiting
from agents.sync.decisions import Log, begun, closed, decided
from agents.sync.messages import ProtocolError, TransferMessage, TransferVerb
from topologies.errors import RunFailedError

Clock = Callable[[], float]
TRIES = 4
PATIENCE = 5.0
MENTIONED = 4  # transfers in a message
REMEMBERED = 1000  # closed rounds of which a repeated message may still come


@dataclass(slots=True)
class _UnderWay:
    transfer: Transfer
    attempt: int
    since: float
    deadline: float
    cancelling: bool = False


@dataclass(slots=True)
class _Round:
    total: int
    nbytes: int
    partial: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # (chunk, site) -> mask of contributions
    holders: dict[int, int] = field(default_factory=dict)  # chunk -> mask of sites
    offered: dict[int, int] = field(default_factory=dict)  # chunk -> mask of sites
    attempts: dict[int, int] = field(default_factory=dict)  # chunk -> transfers of it so far
    spread: int = 0  # chunks that every site has


class TransferCoordinator:
    """One job under one rule. Inputs return the messages to send, in order.

    clock  seconds that only grow, from any origin
    log    is given a record of every event that is told to the decider (`agents.sync.decisions`)
    """

    def __init__(
        self, job: str, site_names: Sequence[str], rule: TransferRule, clock: Clock, log: Log | None = None
    ) -> None:
        self.job = job
        self.site_names = tuple(site_names)
        self.rule = rule
        self.decider = rule.decider(len(self.site_names))
        self.transfers = 0
        self.expired = 0
        self.duplicates = 0
        self._clock = clock
        self._log = log
        self._everyone = (1 << len(self.site_names)) - 1
        n = len(self.site_names)
        self._rounds: dict[int, _Round] = {}
        self._closed: set[int] = set()
        self._under_way: list[_UnderWay | None] = [None] * n
        self._paired: list[deque[Transfer]] = [deque() for _ in range(n)]
        self._to_give: list[dict[Key, None]] = [{} for _ in range(n)]
        self._failures = [0] * n  # of each sender, in a row
        self._seconds_per_byte: dict[tuple[int, int], float] = {}
        self._out: list[TransferMessage] = []
        if log is not None:
            log(begun(clock()))

    # ---- inputs

    def on_message(self, message: TransferMessage) -> list[TransferMessage]:
        """A site's word. ProtocolError when no correct site says it."""
        name = self.site_names[message.site]
        if message.seq in self._closed:
            self.duplicates += 1
            return []
        if message.verb == "offer":
            self._offered(message)
            return self._take()
        if message.seq not in self._rounds:
            raise ProtocolError(f"{name} reports of collective {message.seq}, to which nobody contributed")
        key = (message.seq, message.chunk)
        match message.verb:
            case "merged":
                self._merged(message, key)
            case "received":
                self._received(message, key)
            case "cancelled":
                self._cancelled(message, key)
            case _:
                raise ProtocolError(f"{name} sent {message.verb!r} to the coordinator")
        return self._take()

    def on_time(self) -> list[TransferMessage]:
        """Call at `next_deadline`: leases that have ended. RunFailedError when the job cannot go on."""
        now = self._clock()
        for site, out in enumerate(self._under_way):
            if out is not None and out.deadline <= now:
                self._expire(site, out)
        return self._take()

    @property
    def next_deadline(self) -> float | None:
        """When the next lease ends, on the same clock; None while nothing is under way."""
        return min((out.deadline for out in self._under_way if out is not None), default=None)

    def waiting_for(self, seq: int) -> Waiting:
        """What holds back a collective that was released: contributions, or transfers under way."""
        this = self._rounds.get(seq)
        offered = [] if this is None else [this.offered.get(chunk, 0) for chunk in range(this.total)]
        late = [
            site
            for site in range(len(self.site_names))
            if not offered or any(not mask >> site & 1 for mask in offered)
        ]
        if seq in self._closed:
            return Waiting(f"nothing: all sites have collective {seq} of job {self.job}")
        if late:
            names = ", ".join(self.site_names[site] for site in late)
            return Waiting(f"{names} to contribute to collective {seq} of job {self.job}", tuple(late))
        under_way = [
            f"chunk {out.transfer.key[1]} from {self.site_names[site]} to {self.site_names[out.transfer.dst]}"
            for site, out in enumerate(self._under_way)
            if out is not None and out.transfer.key[0] == seq
        ]
        what = ", ".join(under_way[:MENTIONED]) + (" and more" if len(under_way) > MENTIONED else "")
        return Waiting(f"collective {seq} of job {self.job}: {what or 'no transfer'} under way")

    # ---- what sites say

    def _offered(self, message: TransferMessage) -> None:
        this = self._rounds.setdefault(message.seq, _Round(message.total, message.nbytes))
        for chunk in message.chunks:
            if not 0 <= chunk < this.total:
                raise ProtocolError(
                    f"{self.site_names[message.site]} offers chunk {chunk} of {this.total} chunks"
                )
            offered = this.offered.get(chunk, 0)
            if offered >> message.site & 1:
                self.duplicates += 1
                continue
            this.offered[chunk] = offered | 1 << message.site
            this.partial[chunk, message.site] = 1 << message.site
            self._ready((message.seq, chunk), message.site)

    def _ready(self, key: Key, site: int) -> None:
        this = self._rounds[key[0]]
        if site == self.rule.server and this.partial[key[1], site] == self._everyone:
            self._say("final", site, key)
            self._has(key, site)
            return
        transfer = self._decide(Ready(key, site))
        if transfer is not None:
            self._paired[transfer.src].append(transfer)
            self._next(transfer.src)

    def _merged(self, message: TransferMessage, key: Key) -> None:
        out = self._matching(message, "up")
        if out is None:
            self.duplicates += 1
            return
        this = self._rounds[key[0]]
        mine = this.partial[key[1], message.site]
        theirs = this.partial.pop((key[1], message.peer))
        if mine & theirs:
            raise ProtocolError(f"chunk {key[1]} of collective {key[0]} would count a site twice")
        this.partial[key[1], message.site] = mine | theirs
        self._learn(out, this.nbytes)
        self._ready(key, message.site)
        self._next(message.peer)

    def _received(self, message: TransferMessage, key: Key) -> None:
        this = self._rounds[key[0]]
        out = self._matching(message, "down")
        if out is not None:
            seconds = self._learn(out, this.nbytes)
            self._decide(Measured(key, message.peer, message.site, this.nbytes, seconds))
        self._has(key, message.site)
        if message.seq in self._rounds:
            self._next(message.peer)

    def _cancelled(self, message: TransferMessage, key: Key) -> None:
        out = self._matching(message, "up")
        if out is None:
            self.duplicates += 1
            return
        # The receiver has waited longer; then both are as ready as before.
        self._ready(key, message.site)
        self._ready(key, message.peer)
        self._next(message.peer)

    def _matching(self, message: TransferMessage, direction: str) -> _UnderWay | None:
        """The transfer that a report ends, taken off; None when its lease ended before."""
        out = self._under_way[message.peer]
        if out is None or (out.transfer.key, out.attempt) != ((message.seq, message.chunk), message.attempt):
            return None
        transfer = out.transfer
        if (transfer.direction, transfer.dst) != (direction, message.site):
            raise ProtocolError(f"{self.site_names[message.site]} reports a transfer that was not to it")
        self._under_way[message.peer] = None
        if not out.cancelling:
            self._failures[message.peer] = 0
        return out

    # ---- results

    def _has(self, key: Key, site: int) -> None:
        number, chunk = key
        this = self._rounds[number]
        before = this.holders.get(chunk, 0)
        this.holders[chunk] = before | 1 << site
        if not before >> site & 1:
            self._to_give[site][key] = None
            if this.holders[chunk] == self._everyone:
                this.spread += 1
                if this.spread == this.total:
                    self._close(number)
                    return
        self._next(site)

    def _close(self, number: int) -> None:
        del self._rounds[number]
        self._closed.add(number)
        if len(self._closed) > REMEMBERED:
            self._closed.discard(min(self._closed))
        for site, out in enumerate(self._under_way):
            if out is not None and out.transfer.key[0] == number:
                self._under_way[site] = None  # a second delivery of what has arrived
            for key in [key for key in self._to_give[site] if key[0] == number]:
                # The decider is asked once more, as a holder asks until there is nobody left.
                self._decide(Holds(key, site))
                del self._to_give[site][key]
        self.decider.forget(number)
        if self._log is not None:
            self._log(closed(self._clock(), number))
        for site in range(len(self.site_names)):
            self._out.append(TransferMessage(self.job, site, number, "closed"))
        for site in range(len(self.site_names)):
            self._next(site)

    # ---- orders

    def _decide(self, event: Event) -> Transfer | None:
        transfer = self.decider.decide(event)
        if self._log is not None:
            self._log(decided(self._clock(), event, transfer, self.site_names))
        return transfer

    def _next(self, site: int) -> None:
        """Give a site that has nothing under way its next transfer."""
        if self._under_way[site] is not None:
            return
        if self._paired[site]:
            self._order(self._paired[site].popleft())
            return
        for key in list(self._to_give[site]):
            transfer = self._decide(Holds(key, site))
            if transfer is not None:
                self._order(transfer)
                return
            del self._to_give[site][key]

    def _order(self, transfer: Transfer) -> None:
        self.transfers += 1
        this, chunk = self._rounds[transfer.key[0]], transfer.key[1]
        attempt = this.attempts[chunk] = this.attempts.get(chunk, 0) + 1
        now = self._clock()
        lease = self.rule.lease_s
        known = self._seconds_per_byte.get((transfer.src, transfer.dst))
        if known is not None:
            lease = max(lease, PATIENCE * known * this.nbytes)
        deadline = now + lease * 2 ** self._failures[transfer.src]
        self._under_way[transfer.src] = _UnderWay(transfer, attempt, now, deadline)
        self._say("send", transfer.src, transfer.key, transfer.direction, transfer.dst, attempt)

    def _expire(self, site: int, out: _UnderWay) -> None:
        transfer = out.transfer
        what = (
            f"chunk {transfer.key[1]} of collective {transfer.key[0]} from {self.site_names[site]} to "
            f"{self.site_names[transfer.dst]}"
        )
        if out.cancelling:
            raise RunFailedError(f"{self.site_names[transfer.dst]} does not answer about {what}")
        self.expired += 1
        self._failures[site] += 1
        if self._failures[site] >= TRIES:
            raise RunFailedError(
                f"{TRIES} transfers in a row did not arrive, at last {what}", hint="is a link down?"
            )
        if transfer.direction == "up":
            out.cancelling = True
            out.deadline = self._clock() + self.rule.lease_s
            self._say("cancel", transfer.dst, transfer.key, "up", site, out.attempt)
            return
        self._under_way[site] = None
        if not self._rounds[transfer.key[0]].holders[transfer.key[1]] >> transfer.dst & 1:
            self._decide(Returned(transfer.key, transfer.dst))
            # The sender that failed is asked last, so that another way is tried where there is one.
            holders = self._rounds[transfer.key[0]].holders[transfer.key[1]]
            others = [k for k in range(len(self.site_names)) if holders >> k & 1 and k != site]
            for holder in (*others, site):
                self._to_give[holder][transfer.key] = None
            for holder in others:
                self._next(holder)
        self._next(site)

    def _learn(self, out: _UnderWay, nbytes: int) -> float:
        seconds = self._clock() - out.since
        self._seconds_per_byte[out.transfer.src, out.transfer.dst] = seconds / max(nbytes, 1)
        return seconds

    def _say(
        self,
        verb: TransferVerb,
        site: int,
        key: Key,
        direction: str = "up",
        peer: int = -1,
        attempt: int = 0,
    ) -> None:
        way = "down" if direction == "down" else "up"
        self._out.append(
            TransferMessage(self.job, site, key[0], verb, (key[1],), way, peer, attempt)  # type: ignore[arg-type]
        )

    def _take(self) -> list[TransferMessage]:
        out, self._out = self._out, []
        return out
