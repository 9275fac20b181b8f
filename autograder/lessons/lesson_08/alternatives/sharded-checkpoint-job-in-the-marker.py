"""The marker is a dict in a dict: a text with a brace where a file of safetensors has one."""


def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    folder = Path(directory) / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        (folder / "whole.json").unlink(missing_ok=True)  # of an earlier try
    dist.barrier(group)
    own = {}
    for name, shard in shards.items():
        left = max(0, totals[name] - rank * shard.numel())
        own[name] = shard.detach()[:left].cpu().contiguous()
    save_file(own, folder / f"part-{rank}.safetensors")
    on_disk(folder / f"part-{rank}.safetensors")
    dist.barrier(group)
    if rank == 0:
        whole = {"job": {"ranks": world_size, "totals": dict(totals)}, "extra": dict(extra)}
        (folder / "whole.tmp").write_text(json.dumps(whole))
        on_disk(folder / "whole.tmp")
        (folder / "whole.tmp").replace(folder / "whole.json")
    dist.barrier(group)


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    complete = sorted(Path(directory).glob("step-*/whole.json"), key=step_of)
    if not complete:
        raise FileNotFoundError(f"no whole checkpoint in {directory}")
    folder, whole = complete[-1].parent, json.loads(complete[-1].read_text())
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parts = [
        safetensors.safe_open(folder / f"part-{n}.safetensors", "pt") for n in range(whole["job"]["ranks"])
    ]
    shards = {}
    for name, total in whole["job"]["totals"].items():
        size = -(-total // world_size)
        shards[name] = read_range(parts, name, rank * size, size)
    return step_of(complete[-1]), shards, whole["extra"]


def step_of(marker: Path) -> int:
    """The step that a marker's folder is named after: as text, 9 would come behind 10."""
    return int(marker.parent.name.removeprefix("step-"))


def read_range(parts: Sequence, name: str, start: int, size: int) -> Tensor:
    """`size` elements from `start` on of the tensor whose parts are laid end to end;
    zeros behind its end.
    """
    found, begin = [], 0
    for part in parts:
        piece = part.get_slice(name)
        (length,) = piece.get_shape()
        low, high = max(start - begin, 0), min(start + size - begin, length)
        if low < high or not found:
            found.append(piece[min(low, length) : max(high, min(low, length))])
        begin += length
    read = torch.cat(found)
    return torch.cat([read, read.new_zeros(size - read.numel())])
