"""What control messages are for, to account for them: a class by kind and content of a frame. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

BARRIER: Final = "barrier"
POLICIES: Final = "policies"
ACKS: Final = "acks"
TRANSFERS: Final = "transfers"
REPORTS: Final = "reports"
ROUTES: Final = "routes"
ALIVE: Final = "alive"
JOBS: Final = "jobs"


class Counted(Protocol):
    """A control connection."""

    sent: Counter[str]
    received: Counter[str]


CLASSES: Final = {
    BARRIER: "a site is ready, a collective is released or settled",
    POLICIES: "releases and announcements that carry a policy, and changes of plan inside a collective",
    ACKS: "a site has installed a policy",
    TRANSFERS: "transfers that are decided one by one",
    REPORTS: "estimates of links",
    ROUTES: "paths: detours that are allowed, links that are down",
    ALIVE: "signs of life",
    JOBS: "jobs, workers and segments",
}
"""Every class, and what belongs to it."""

_KINDS: Final = {"estimates": REPORTS, "detours": ROUTES, "routes": ROUTES, "ping": ALIVE}
_MESSAGES: Final = {
    "ready": BARRIER,
    "planack": ACKS,
    "switchmessage": POLICIES,
    "transfermessage": TRANSFERS,
}


class ControlTotals:
    """Bytes of control by class over many connections, those that have ended included.

    A stream is anything with `sent` and `received`, counters by class.
    """

    def __init__(self) -> None:
        self._streams: list[Counted] = []
        self._past: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def add(self, stream: Counted) -> None:
        self._streams.append(stream)

    def ended(self, stream: Counted) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            self._past[0].update(stream.sent)
            self._past[1].update(stream.received)

    def read(self) -> tuple[Counter[str], Counter[str]]:
        """(sent, received) so far."""
        sent, received = Counter(self._past[0]), Counter(self._past[1])
        for stream in self._streams:
            sent.update(stream.sent)
            received.update(stream.received)
        return sent, received

    def since(self, before: tuple[Counter[str], Counter[str]]) -> dict[str, dict[str, int]]:
        """What came on top of an earlier reading, as plain values for results."""
        sent, received = self.read()
        return {"to_sites_bytes": dict(sent - before[0]), "from_sites_bytes": dict(received - before[1])}


def control_class(kind: str, body: Mapping[str, Any]) -> str:
    """The class of a frame."""
    if kind != "machine":
        return _KINDS.get(kind, JOBS)
    message = body.get("message")
    if not isinstance(message, Mapping):
        return JOBS
    if message.get("type") in ("release", "announce"):
        return BARRIER if message.get("policy") is None else POLICIES
    return _MESSAGES.get(str(message.get("type")), JOBS)
