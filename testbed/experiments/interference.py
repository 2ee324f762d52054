"""What others did to the testbed's links while a run went on, from the testbed's event log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

CHANGES: Final = {
    "link_set": "set",
    "link_reset": "reset",
    "link_down": "cut",
    "link_up": "mended",
    "blackhole": "blackhole",
}
WHOLE_CABLE: Final = frozenset({"link_down", "link_up", "link_reset"})
"""What is done to both directions unless its arguments say otherwise."""
LOADS: Final = {"calibrate": "`calibrate`", "link_test": "`link test`"}
PLAYING: Final = frozenset({"dynamics_start", "dynamics_stop"})
MOST_TOLD: Final = 5


def interference(
    events: Iterable[Mapping[str, Any]], began_ns: int, ended_ns: int, *, own_changes: bool
) -> tuple[str, ...]:
    """Why the network was not left alone, a sentence each; nothing when it was.

    Args:
        events: the testbed's event log.
        began_ns, ended_ns: the run, on the monotonic clock.
        own_changes: whether the experiment itself has links change; only then may they do so by themselves.
    """
    changes: dict[str, None] = {}
    loads: dict[str, None] = {}
    varied = False
    for event in events:
        if not began_ns <= event.get("monotonic_ns", 0) <= ended_ns:
            continue
        if event.get("kind") == "link_changes" and not own_changes:
            varied = True
        if event.get("kind") != "verb":
            continue
        verb, arguments = event.get("verb"), event.get("arguments") or {}
        if verb in CHANGES:
            whole = {"both": True} if verb in WHOLE_CABLE else {}
            changes |= dict.fromkeys(f"{link} {CHANGES[verb]}" for link in _links({**whole, **arguments}))
        elif verb in LOADS:
            loads[LOADS[verb]] = None
        elif verb in PLAYING and not own_changes:
            varied = True
    found: list[str] = []
    if changes:
        told = list(changes)
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        found.append(f"links were changed by hand during the run: {', '.join(told[:MOST_TOLD])}{more}")
    if varied:
        found.append("links changed by themselves during the run (`up --dynamics` or `link vary`)")
    if loads:
        found.append(f"{' and '.join(loads)} loaded the links during the run")
    return tuple(found)


def changes_by_others(
    events: Iterable[Mapping[str, Any]], began_ns: int, ended_ns: int, *, own_changes: bool
) -> list[tuple[int, list[dict[str, Any]]]]:
    """What others made of links during a run, by time: when (monotonic clock), and each link as it then was.

    The arguments are those of `interference`.
    """
    kinds = {"links_by_hand"} if own_changes else {"links_by_hand", "link_changes"}
    return [
        (event["monotonic_ns"], event["links"])
        for event in events
        if event.get("kind") in kinds and began_ns <= event.get("monotonic_ns", 0) <= ended_ns
    ]


def _links(arguments: Mapping[str, Any]) -> list[str]:
    """The links that a verb's arguments name."""
    named = [arguments, *(arguments.get("changes") or ())]
    links = [
        f"{one['src']}{'-' if one.get('both') else '>'}{one['dst']}"
        for one in named
        if one.get("src") and one.get("dst")
    ]
    return links or ["all links"]
