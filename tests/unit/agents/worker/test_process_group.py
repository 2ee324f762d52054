"""The backend as a script sees it: torch.distributed's own functions, one process per rank."""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from .collectives import CHECKS
from .hub import run_ranks

torch.set_num_threads(1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_collectives(check):
    run_ranks(3, check)


def test_the_cause_of_a_failure_reaches_every_way_of_waiting():
    def body(rank, world):
        first = dist.all_reduce(torch.ones(4), async_op=True)
        assert first.wait() and first.is_success() and first.exception() is None
        second = dist.all_reduce(torch.ones(4), async_op=True)
        with pytest.raises(RuntimeError, match=r"allreduce \(float32, 4 elements\): site dc2 left"):
            second.wait()
        assert second.is_completed() and not second.is_success()
        assert "site dc2 left" in str(second.exception())
        with pytest.raises(RuntimeError, match="site dc2 left"):
            second.get_future().wait()
        # A callback on the future sees the failure too, and so does whoever waits for the callback.
        with pytest.raises(RuntimeError, match="site dc2 left"):
            second.get_future().then(lambda f: f.value()).wait()
        # The ranks are out of step from here on: nothing is submitted any more.
        with pytest.raises(RuntimeError, match="site dc2 left"):
            dist.barrier()
        assert "site dc2 left" in str(dist.group.WORLD.failure)

    run_ranks(2, body, fail_after=1)


def test_waiting_ends_at_the_deadline_also_for_a_future():
    def body(rank, world):
        dist.group.WORLD.set_timeout(timedelta(seconds=1))  # longer than this process may be held up below
        if rank:
            return None  # never takes part
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match=r"waited 0.05 s for the result of allreduce"):
            work.wait(timedelta(seconds=0.05))
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r"waited 1 s for the other ranks"):
            work.get_future().wait()
        return time.monotonic() - begin

    assert 0.2 < run_ranks(2, body)[0] < 10


def test_a_gradient_is_handed_over_without_a_copy():
    def body(rank, world):
        seen = []
        client = dist.group.WORLD.client
        submit = client.allreduce
        client.allreduce = lambda array, op, cls: (seen.append(array), submit(array, op, cls))[1]
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert np.shares_memory(seen[0], tensor.numpy())
        dist.all_reduce(torch.ones(10, 10).t()[:, ::2])
        assert seen[1].flags.c_contiguous

    run_ranks(2, body)


def test_the_timeline_tells_when_collectives_were_handed_over_and_done():
    def body(rank, world):
        group = dist.group.WORLD
        before = time.monotonic_ns()
        dist.all_reduce(torch.ones(7, dtype=torch.float64))
        dist.barrier()
        first, second = group.take_records()
        assert (first.kind, first.dtype, first.elements) == ("allreduce", "float64", 7)
        assert second.kind == "barrier" and second.elements == 0
        assert before <= first.submitted_ns < first.done_ns <= second.submitted_ns < second.done_ns
        assert second.done_ns <= time.monotonic_ns()
        assert group.take_records() == []

    run_ranks(2, body)


def test_groups():
    def body(rank, world):
        everyone = dist.new_group(list(range(world)))
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=everyone)
        assert tensor.tolist() == [3.0] * 3
        dist.destroy_process_group(everyone)
        dist.barrier()
        if rank < 2:
            with pytest.raises(
                RuntimeError, match=r"no group of the ranks \[0, 1\], only of all 3.*backend='gloo'"
            ):
                dist.new_group([0, 1])
        else:
            assert dist.new_group([0, 1]) is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_backend() == "stormbed"
        assert dist.group.WORLD.name() == "stormbed"
        assert not dist.group.WORLD.client.closed

    run_ranks(3, body)


def test_a_rank_that_contradicts_its_agent_is_refused():
    from agents.worker import Options
    from agents.worker.backend import create

    class Client:
        rank, world_size = 1, 3

    class Given:
        global_ranks_in_group = ()
        group_rank, group_size, timeout = 0, 3, timedelta(seconds=1)

    with pytest.raises(RuntimeError, match="says it is rank 0 of 3, its agent says 1 of 3"):
        create(Given, Options(client=Client()))
    with pytest.raises(RuntimeError, match=r"agents\.worker\.Options, not dict"):
        create(Given, {})
