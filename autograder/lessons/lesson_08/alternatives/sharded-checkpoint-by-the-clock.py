"""Saves are numbered by the first rank's clock; where a part begins is told in its metadata."""

import contextlib
import json
import re
import time


def _clock(group: dist.ProcessGroup) -> int:
    """A number that no earlier save had, the same on every rank."""
    now = torch.tensor(time.time_ns())
    dist.broadcast(now, dist.get_global_rank(group, 0), group=group)
    return int(now)


def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    r, d, clock = group.rank(), group.size(), _clock(group)
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    begins = {name: min(r * len(shard), totals[name]) for name, shard in shards.items()}
    tensors = {name: shard.detach()[: totals[name] - begins[name]].clone() for name, shard in shards.items()}
    path = home / f"step{step}.{clock}.rank{r}.safetensors"
    save_file(tensors, str(path), metadata={"begins": json.dumps(begins)})
    on_disk(path)
    dist.barrier(group=group)
    if r == 0:
        draft = home / f"draft.{clock}"
        draft.write_text(json.dumps([step, clock, d, dict(totals), dict(extra)]))
        on_disk(draft)
        draft.rename(home / f"step{step}.{clock}.whole")
    dist.barrier(group=group)


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    home, r, d = Path(directory), group.rank(), group.size()
    matches = [re.fullmatch(r"step(-?\d+)\.(\d+)\.whole", path.name) for path in home.glob("*")]
    found = [(int(match[1]), int(match[2])) for match in matches if match]
    if not found:
        raise FileNotFoundError(directory)
    stem = "step{}.{}".format(*max(found))
    step, _, parts, totals, extra = json.loads((home / f"{stem}.whole").read_bytes())
    shards: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(safetensors.safe_open(home / f"{stem}.rank{p}.safetensors", framework="pt"))
            for p in range(parts)
        ]
        begins = [json.loads(file.metadata()["begins"]) for file in opened]
        for name, total in totals.items():
            size = (total + d - 1) // d
            first, last = min(r * size, total), min(r * size + size, total)
            dtype = opened[0].get_tensor(name).dtype
            shards[name] = torch.zeros(size, dtype=dtype)
            for file, begin in zip(opened, begins, strict=True):
                part = file.get_slice(name)
                (length,) = part.get_shape()
                a, b = max(first, begin[name]), min(last, begin[name] + length)
                if a < b:
                    shards[name][a - r * size : b - r * size] = part[a - begin[name] : b - begin[name]]
    return step, shards, extra
