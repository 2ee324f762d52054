"""The process group without its collectives: what torch asks about it, and how any collective is handed over."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from agents.worker.arguments import Batch
from agents.worker.buffers import check
from agents.worker.work import CollectiveWork, Record, Watchdog
from topologies.errors import StormbedError

if TYPE_CHECKING:
    from agents.local import LocalClient

BACKEND: Final = "stormbed"
KEPT_RECORDS: Final = 4096


class Group(dist.ProcessGroup):
    """All workers of a job, as `torch.distributed` sees them; the collectives are the subclass's.

    Args:
        client: the connection to this site's agent, joined.
        timeout: the longest that a collective may take; then it fails, also for waiters in C++.
        owned: whether `shutdown` closes the client.
    """

    def __init__(self, client: LocalClient, timeout: timedelta, *, owned: bool = False) -> None:
        super().__init__(client.rank, client.world_size)
        self.client = client
        self._owned = owned
        self._rank: int = client.rank
        self._world: int = client.world_size
        self._timeout_s = timeout.total_seconds()
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._records: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self._failure: BaseException | None = None
        self._closed = False
        self._name = ""
        self._desc = ""

    # --- what torch asks about the group ---

    def getBackendName(self) -> str:
        return BACKEND

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def set_timeout(self, timeout: timedelta) -> None:
        """How long collectives called from now on may take."""
        self._timeout_s = timeout.total_seconds()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    @property
    def failure(self) -> BaseException | None:
        """The cause of the first failed collective, or None.

        After it the ranks are no longer in step, and every further collective fails with it.
        """
        return self._failure

    def take_records(self) -> list[Record]:
        """The collectives handed over since the last call, oldest first (the last 4096 at most)."""
        with self._lock:
            taken = list(self._records)
            self._records.clear()
        return taken

    def shutdown(self) -> None:
        """Ends the watchdog, and the connection if it is the group's own. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._watchdog.close()
        if self._owned:
            self.client.close()

    def abort(self) -> None:
        self.shutdown()

    # --- common to all collectives ---

    def _begin(self, kind: str, tensors: Sequence[torch.Tensor]) -> Record:
        """Notes the time first: what follows (copies, hand-over) belongs to the synchronisation."""
        now = time.monotonic_ns()
        check(tensors)
        if len({t.dtype for t in tensors}) > 1:
            names = sorted({str(t.dtype) for t in tensors})
            raise RuntimeError(f"{kind}: all tensors must have one dtype, not {', '.join(names)}")
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        return Record(kind, dtype, sum(t.numel() for t in tensors), now)

    def _launch(
        self, record: Record, batch: Batch, outputs: Sequence[Any], timeout_s: float | None
    ) -> CollectiveWork:
        seconds = timeout_s or self._timeout_s
        work = CollectiveWork(record, outputs, batch.finishers, seconds, self._note_failure)
        with self._lock:
            if self._failure is not None:
                raise dist.DistBackendError(f"{record.kind}: {self._failure}") from self._failure
            if self._closed:
                raise dist.DistBackendError(f"{record.kind}: this process group has been shut down")
            self._records.append(record)
            try:
                handles = [call() for call in batch.calls]
            except StormbedError as error:
                self._failure = error
                raise dist.DistBackendError(f"{record.kind}: {error}") from error
        work.follow(handles)
        self._watchdog.watch(work, seconds)
        return work

    def _note_failure(self, error: BaseException) -> None:
        # Called on the client's reader thread, without the lock: its holder may be waiting for that thread.
        if self._failure is None:
            self._failure = error

    def _expect_parts(self, kind: str, parts: Sequence[torch.Tensor], elements: int | None = None) -> None:
        if len(parts) != self._world:
            raise RuntimeError(f"{kind}: {len(parts)} tensors given for {self._world} ranks")
        for rank, part in enumerate(parts):
            if elements is not None and part.numel() != elements:
                raise RuntimeError(
                    f"{kind}: the tensor for rank {rank} has {part.numel()} elements, not {elements}"
                )

    def _in_parts(self, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
        """The tensor as one flat part per rank."""
        if whole.numel() != part.numel() * self._world:
            raise RuntimeError(f"{whole.numel()} elements do not make {self._world} parts of {part.numel()}")
        if not whole.is_contiguous():
            raise RuntimeError("the tensor that holds a part per rank must be contiguous")
        return list(whole.detach().view(self._world, -1).unbind(0)) if whole.numel() else [part] * self._world
