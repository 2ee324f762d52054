"""When the policies of a job were issued and came into force, from where on, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.sync.coordinator_machine import CoordinatorMachine


class PolicyHistory:
    """Kept beside the coordinator's machine of one job."""

    def __init__(self) -> None:
        self._version = 0
        self._coming: list[dict[str, Any]] = []  # issued, and no collective has begun under them

    def note(self, machine: CoordinatorMachine, now_ns: int, why: Mapping[str, Any]) -> list[dict[str, Any]]:
        """To be called after every input of the machine.

        Returns what came into force with it: {"version", "from_seq", "issued_ns", "monotonic_ns"} and the entries
        of `why`, which go with what the input issued; "from_chunk" too where it holds inside a collective.
        """
        begun: list[dict[str, Any]] = []
        issued = machine.policy
        if issued is not None and issued.version != self._version:
            self._version = issued.version
            entry = {"version": issued.version, "from_seq": issued.from_seq, "issued_ns": now_ns, **why}
            switched = machine.switched
            if switched is not None and switched[0] == issued.version:
                _, seq, chunk = switched
                begun.append(entry | {"from_seq": seq, "from_chunk": chunk, "monotonic_ns": now_ns})
            else:
                # What a newer policy replaces before it began never comes into force.
                self._coming = [e for e in self._coming if e["from_seq"] < issued.from_seq] + [entry]
        while self._coming and machine.next_seq > self._coming[0]["from_seq"]:
            begun.append({**self._coming.pop(0), "monotonic_ns": now_ns})
        return begun
