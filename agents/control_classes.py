"""What control messages are for, to account for them: a class by kind and content of a frame. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BARRIER: Final = "barrier"
POLICIES: Final = "policies"
ACKS: Final = "acks"
TRANSFERS: Final = "transfers"
REPORTS: Final = "reports"
ROUTES: Final = "routes"
ALIVE: Final = "alive"
JOBS: Final = "jobs"

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
