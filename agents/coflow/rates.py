"""Rates that follow an order, on any routes. Exact on rationals; written to be read, not for speed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from agents.coflow.base import Number

Id = TypeVar("Id", bound=Hashable)


@dataclass(frozen=True)
class Backlog(Generic[Id]):
    """What a flow has left, and the links it crosses."""

    id: Id
    left: Number
    route: tuple[int, ...]


def greedy(flows: Sequence[Backlog[Id]], free: dict[int, Number]) -> dict[Id, Number]:
    """Each in turn takes all that its links have left. `free` is used up in place."""
    rates: dict[Id, Number] = {}
    for flow in flows:
        rate = min(free[link] for link in flow.route) if flow.left > 0 else 0
        if rate > 0:
            rates[flow.id] = rate
            for link in flow.route:
                free[link] -= rate
    return rates


def madd(flows: Sequence[Backlog[Id]], free: dict[int, Number]) -> tuple[dict[Id, Number], Number | None]:
    """The least rates with which all flows of a coflow end together, and when that is (Varys).

    A coflow that needs a link with nothing left gets nothing, and None. `free` is used up in place.
    """
    load: dict[int, Number] = {}
    for flow in flows:
        for link in flow.route:
            load[link] = load.get(link, 0) + flow.left
    needed = {link: amount for link, amount in load.items() if amount > 0}
    if not needed or any(free[link] <= 0 for link in needed):
        return {}, None
    seconds = max(amount / free[link] for link, amount in needed.items())
    for link, amount in needed.items():
        free[link] -= amount / seconds
    return {flow.id: flow.left / seconds for flow in flows if flow.left > 0}, seconds


def max_min(flows: Sequence[Backlog[Id]], free: dict[int, Number]) -> dict[Id, Number]:
    """Max-min fair rates: all grow together until a link is full (progressive filling)."""
    rates: dict[Id, Number] = {}
    waiting = [flow for flow in flows if flow.left > 0]
    while waiting:
        count: dict[int, int] = {}
        for flow in waiting:
            for link in flow.route:
                count[link] = count.get(link, 0) + 1
        share, full = min((free[link] / number, link) for link, number in count.items())
        for flow in waiting:
            if full in flow.route:
                rates[flow.id] = share
                for link in flow.route:
                    free[link] -= share
        waiting = [flow for flow in waiting if full not in flow.route]
        free[full] = 0
    return rates
