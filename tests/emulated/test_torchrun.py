"""A DDP script written for gloo runs at the sites of a testbed without an edit, on either backend."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from testbed.emulation.waiting import wait_for
from tests.emulated.conftest import Bring, Standing

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: UNVERIFIED here"),
]

ROOT = Path(__file__).parents[2]

SCRIPT = '''
"""Fits a line on every rank's own points; DDP averages the gradients, so all ranks learn one line."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(steps):
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(100 + rank)  # different first weights: DDP must send those of rank 0 to all
    model = DDP(nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 4, generator=generator)
        y = x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = sum(p.detach().double().sum() for p in model.parameters())
    return losses, total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    losses, total = train(steps)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} local {os.environ['LOCAL_RANK']} "
          f"on {dist.get_backend()} first {losses[0]:.4f} last {losses[-1]:.4f} sum {total!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''

FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("no data here")
time.sleep(600)
"""

WAITS = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], __import__("os").environ["RANK"]).touch()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def pair(bring: Bring) -> Standing:
    return bring("pair")


def command(pair: Standing, *words: str) -> list[str]:
    return [sys.executable, "-m", "testbed", "torchrun", "--name", pair.name, *words]


def carried(pair: Standing) -> int:
    return sum(link["bytes"] for link in pair.client.call("sample")["links"])


@pytest.mark.parametrize("backend", ["stormbed", "gloo"])
def test_a_script_for_gloo_trains_unmodified(pair: Standing, tmp_path: Path, backend: str) -> None:
    script = tmp_path / "line.py"
    script.write_text(SCRIPT)
    before = carried(pair)
    words = command(pair, "--backend", backend, "--timeout", "150", str(script), "--steps", "12")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("torchrun/*/*/stdout")}
    assert sorted(logs) == ["dc1-0", "dc2-0"]
    for rank, (worker, text) in enumerate(sorted(logs.items())):
        assert f"rank {rank} of 2 local 0 on {backend} " in text
        assert f"[{worker}] {text.strip()}" in done.stdout, "each line is shown as well, with its worker"
        words = text.split()
        assert float(words[words.index("last") + 1]) < 0.5 * float(words[words.index("first") + 1])
    sums = {text.rsplit("sum ", 1)[1].strip() for text in logs.values()}
    assert len(sums) == 1, f"all ranks end with the same parameters: {sums}"
    # 12 gradients of 1801 float32 at least cross the WAN in each direction.
    assert carried(pair) - before > 2 * 12 * 1801 * 4


def test_the_commands_of_the_page_work(pair: Standing, tmp_path: Path) -> None:
    lines = re.findall(r"^testbed torchrun (.*)$", (ROOT / "docs" / "torchrun.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    words = command(pair, "--logs", str(tmp_path), "--timeout", "150", *lines[0].split())
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "[dc1-0] epoch " in line]
    assert len(losses) == 3 and losses[2] < 0.7 * losses[0]
    assert all(" examples/ddp.py --epochs 3" in f" {line}" for line in lines)


def test_the_first_site_to_fail_is_named_and_all_others_end(pair: Standing, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    words = command(pair, "--backend", "gloo", "--quiet", str(script))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 5, done.stderr
    assert "site dc2 failed first: worker dc2-0 ended with status 1: no data here" in done.stderr
    wait_for(lambda: running(pair) == [], "the workers' shells to end", 30)


def test_what_takes_too_long_or_cannot_be_ends_with_its_own_code(pair: Standing, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    words = [str(tmp_path / "waits.py"), str(tmp_path)]
    for options, code, says in (
        (("--timeout", "3", "--logs", str(tmp_path / "late")), 5, "not over after 3 s, still running: dc1-0, dc2-0"),
        (("--timeout", "-3", "--logs", str(tmp_path / "logs")), 2, "a timeout of -3 s"),
        (("--scheduler", "bogus", "--logs", str(tmp_path / "logs")), 2, "unknown scheduler 'bogus'"),
    ):
        command_line = command(pair, *options, *words)
        done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code and says in done.stderr, done.stderr
    assert not (tmp_path / "logs").exists()


def test_ctrl_c_ends_every_worker(pair: Standing, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    process = subprocess.Popen(
        command(pair, str(script), str(tmp_path)), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: {"0", "1"} <= {path.name for path in tmp_path.iterdir()}, "both workers to run", 120)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130, said
    # The shell around a worker writes down its exit code, and may need a moment more.
    wait_for(lambda: running(pair) == [], "the workers' shells to end", 30)


def running(pair: Standing) -> list[str]:
    """The command lines of launched scripts that are alive at any site."""
    found = (pair.client.call("processes", site=site) for site in pair.info.sites)
    return [
        " ".join(p["argv"]) for rows in found for p in rows if "testbed.torchrun_site" in " ".join(p["argv"])
    ]
