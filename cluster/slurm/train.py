"""A very small training with what a cluster asks of one: every rank its share of the data, checkpoints
that are whole or absent, going on from the last. Started by train.sbatch; needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule


def data(samples: int, features: int) -> tuple[Tensor, Tensor]:
    """Inputs (samples, features) and targets (samples, 1), the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=generator)
    return x, x.sum(dim=1, keepdim=True) + 1


def save(path: Path, step: int, model: nn.Module) -> None:
    """Write beside the old checkpoint, then put it in its place: who is ended meanwhile leaves the old."""
    unfinished = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict()}, unfinished)
    unfinished.rename(path)


def watched(folder: Path | None) -> contextlib.AbstractContextManager[profile | None]:
    """With a folder: each rank writes there what its steps 3 to 5 did, for `labkit trace FOLDER`.

    The step before is watched and thrown away: in it the profiler itself is slow.
    """
    if folder is None:
        return contextlib.nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank{dist.get_rank()}.json"
    when = schedule(wait=1, warmup=1, active=3, repeat=1)
    return profile(
        schedule=when, on_trace_ready=lambda p: p.export_chrome_trace(str(file)), profile_memory=True
    )


def train(steps: int, every: int, pause: float, path: Path, profiles: Path | None) -> None:
    """Gradient descent on a mean squared error; rank 0 prints and saves."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = (part.to(device).tensor_split(ranks)[rank] for part in data(max(64, ranks), 4))
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    begin = 0
    if path.exists():
        saved = torch.load(path, map_location="cpu", weights_only=True)  # not all onto rank 0's GPU
        begin = saved["step"]
        model.load_state_dict(saved["model"])
    wrapped = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    where = os.environ.get("SLURMD_NODENAME", "this machine")
    print(f"rank {rank} of {ranks} on {where}, from step {begin}", flush=True)
    with watched(profiles) as profiler:
        for step in range(begin + 1, steps + 1):
            with record_function("forward"):
                loss = nn.functional.mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            with record_function("backward"):
                loss.backward()
            optimizer.step()
            time.sleep(pause)
            if rank == 0 and (step % every == 0 or step == steps):
                print(f"step {step}: loss {loss.item():.6f}", flush=True)
                save(path, step, model)
            if profiler is not None:
                profiler.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step takes longer, to watch it")
    parser.add_argument("--profile", type=Path, help="a folder for the profiler's traces, one a rank")
    folder = Path(os.environ.get("TRAIN_FOLDER", "."))
    parser.add_argument("--checkpoint", type=Path, default=folder / "train.pt")
    options = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(options.steps, options.every, options.pause, options.checkpoint, options.profile)
    finally:
        dist.destroy_process_group()
