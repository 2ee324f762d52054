"""The log of transfers that were decided one by one: who asked, what was known, what was chosen, and why. Pure.

One record an event, in the order in which the coordinator told them to the decider, with what it answered. Since
a decider is deterministic, the events alone give the decisions again: `replay` does that, and finds where a log
and a decider part.

A record is a map of plain values:
    t_s                 seconds of the coordinator's clock
    round, chunk        the collective's number and the chunk's within it
    event               begin: from here on a decider that knows nothing
                        ready: the partial sum at `site` may travel or take in another
                        holds: `site` has the result and asks for a receiver
                        measured: the result took `seconds` from `src` to `dst`
                        returned: a delivery to `site` did not come about in time
                        closed: every site has every result of the round
    decision            what it led to, null for nothing: phase (push, pull), src, dst, mode (why), draw and
                        chance (the choice by what is known is taken where draw < chance), seen: what is known
                        of the links looked at, by "from>to" (null = nothing)
Source: own, after the fields that any account of TSEngine's choices needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agents.planning.transfers import Decider, Event, Holds, Measured, Ready, Returned, Transfer

Record = dict[str, Any]
Log = Callable[[Record], object]

_PHASE = {"up": "push", "down": "pull"}


def decided(t_s: float, event: Event, answer: Transfer | None, names: Sequence[str]) -> Record:
    """The record of one event and what it led to."""
    record: Record = {"t_s": t_s, "round": event.key[0], "chunk": event.key[1]}
    match event:
        case Ready(_, site):
            record |= {"event": "ready", "site": names[site]}
        case Holds(_, site):
            record |= {"event": "holds", "site": names[site]}
        case Returned(_, site):
            record |= {"event": "returned", "site": names[site]}
        case Measured(_, src, dst, nbytes, seconds):
            ends = {"src": names[src], "dst": names[dst]}
            record |= {"event": "measured", **ends, "bytes": nbytes, "seconds": seconds}
    return record | {"decision": None if answer is None else _decision(answer, names)}


def begun(t_s: float) -> Record:
    """The record of a fresh decider."""
    return {"t_s": t_s, "round": None, "chunk": None, "event": "begin", "decision": None}


def closed(t_s: float, round_number: int) -> Record:
    """The record of a round's end."""
    return {"t_s": t_s, "round": round_number, "chunk": None, "event": "closed", "decision": None}


def _decision(answer: Transfer, names: Sequence[str]) -> Record:
    return {
        "phase": _PHASE[answer.direction],
        "src": names[answer.src],
        "dst": names[answer.dst],
        "mode": answer.mode,
        "draw": answer.draw,
        "chance": answer.chance,
        "seen": {f"{names[src]}>{names[dst]}": known for src, dst, known in answer.seen},
    }


def replay(
    records: Iterable[Mapping[str, Any]], fresh: Callable[[], Decider], names: Sequence[str]
) -> Record | None:
    """Tell fresh deciders the events of a log; the first record in which one decides otherwise, None if none."""
    place = {name: site for site, name in enumerate(names)}
    decider = fresh()
    for record in records:
        if record["event"] == "begin":
            decider = fresh()
            continue
        if record["event"] == "closed":
            decider.forget(record["round"])
            continue
        event = _event(record, place)
        answer = decider.decide(event)
        if (None if answer is None else _decision(answer, names)) != record["decision"]:
            return decided(record["t_s"], event, answer, names)
    return None


def _event(record: Mapping[str, Any], place: Mapping[str, int]) -> Event:
    key = record["round"], record["chunk"]
    match record["event"]:
        case "ready":
            return Ready(key, place[record["site"]])
        case "holds":
            return Holds(key, place[record["site"]])
        case "returned":
            return Returned(key, place[record["site"]])
    return Measured(key, place[record["src"]], place[record["dst"]], record["bytes"], record["seconds"])
