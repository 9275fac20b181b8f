"""A save has a name that rank 0 draws. Parts bear it, and the marker, renamed into place when all parts are
on the disk, tells which save is whole.
"""

import contextlib
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor


def _agreed_name(group: dist.ProcessGroup) -> str:
    drawn = torch.tensor(list(uuid.uuid4().bytes), dtype=torch.uint8)
    dist.broadcast(drawn, dist.get_global_rank(group, 0), group=group)
    return bytes(drawn.tolist()).hex()


def _all_well(error: Exception | None, group: dist.ProcessGroup) -> None:
    failed = torch.tensor([float(error is not None)])
    dist.all_reduce(failed, group=group)
    if error is not None:
        raise error
    if failed.item():
        raise RuntimeError("another rank could not write its part")


def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    directory = Path(directory)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    name = _agreed_name(group)
    error = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / f"{step:012d}-{name}-{rank}.safetensors"
        own = {}
        for key, shard in shards.items():
            begin = -(-totals[key] // ranks) * rank
            end = min(begin + shard.numel(), totals[key])
            own[key] = shard.detach()[: max(0, end - begin)].cpu().clone()
        save_file(own, part)
        on_disk(part)
    except Exception as problem:
        error = problem
    _all_well(error, group)
    try:
        if rank == 0:
            marker = directory / f"{step:012d}.json"
            draft = directory / f"{step:012d}-{name}.draft"
            draft.write_text(
                json.dumps(
                    {"step": step, "save": name, "ranks": ranks, "totals": dict(totals), "extra": extra}
                )
            )
            on_disk(draft)
            draft.replace(marker)
    except Exception as problem:
        error = problem
    _all_well(error, group)


def _whole(directory: Path, about: dict) -> list[Path] | None:
    step, name = about["step"], about["save"]
    parts = [directory / f"{step:012d}-{name}-{rank}.safetensors" for rank in range(about["ranks"])]
    for rank, part in enumerate(parts):
        with safetensors.safe_open(part, "pt") as file:
            for key, total in about["totals"].items():
                size = -(-total // about["ranks"])
                if file.get_slice(key).get_shape() != [max(0, min(size, total - rank * size))]:
                    return None
    return parts


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    directory = Path(directory)
    for marker in sorted(directory.glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError, safetensors.SafetensorError):
            about = json.loads(marker.read_text())
            parts = _whole(directory, about)
            if parts is not None:
                return about["step"], _cut(parts, about["totals"], group), about["extra"]
    raise FileNotFoundError(f"no whole checkpoint in {directory}")


def _cut(parts: list[Path], totals: dict[str, int], group: dist.ProcessGroup) -> dict[str, Tensor]:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    result = {}
    for key, total in totals.items():
        size, old = -(-total // ranks), -(-total // len(parts))
        begin, end = min(rank * size, total), min((rank + 1) * size, total)
        found = []
        for number, part in enumerate(parts):
            low, high = max(begin, number * old), min(end, (number + 1) * old, total)
            if low < high or not found:
                with safetensors.safe_open(part, "pt") as file:
                    here = file.get_slice(key)
                    found.append(here[low - number * old : high - number * old] if low < high else here[0:0])
        data = torch.cat(found)
        result[key] = torch.cat([data, data.new_zeros(size - data.numel())])
    return result
