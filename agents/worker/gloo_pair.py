"""`python -m agents.worker.gloo_pair --rank R --master HOST:PORT`: one all-reduce of two ranks over gloo.

What the doctor runs at two sites: gloo, the baseline on the same network, has to find the interface that it is
given and the other rank behind it. Prints the sum of the two ranks' elements.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

ELEMENTS = 250_000
"""One megabyte of float32: enough to tell it from the rendezvous in a link's byte counter."""
TIMEOUT = timedelta(seconds=30)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agents.worker.gloo_pair")
    parser.add_argument("--rank", type=int, required=True, help="0 or 1")
    parser.add_argument("--master", required=True, help="HOST:PORT of rank 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{arguments.master}", rank=arguments.rank, world_size=2, timeout=TIMEOUT
    )
    tensor = torch.full((ELEMENTS,), float(arguments.rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    sys.stdout.write(f"{tensor.sum().item():.0f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
