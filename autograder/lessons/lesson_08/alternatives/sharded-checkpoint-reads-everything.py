def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    """Write a checkpoint of `step` into `directory`, which all ranks share; all ranks call it.

    shards: name -> this rank's shard, 1-d. totals: name -> elements of the flat tensor without padding.
    extra: what JSON can hold. Raises whatever kept a file from being written: then it is no checkpoint.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    folder = Path(directory) / f"step-{step:09d}"
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
        whole = {"ranks": world_size, "totals": dict(totals), "extra": dict(extra)}
        (folder / "whole.tmp").write_text(json.dumps(whole))
        on_disk(folder / "whole.tmp")
        (folder / "whole.tmp").replace(folder / "whole.json")
    dist.barrier(group)


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    """(step, shards, extra) of the newest whole checkpoint, cut for the ranks of `group`.

    Raises FileNotFoundError, naming the directory, if there is none.
    """
    complete = sorted(
        Path(directory).glob("step-*/whole.json"),
        key=lambda path: int(path.parent.name.removeprefix("step-")),
    )
    if not complete:
        raise FileNotFoundError(f"no whole checkpoint in {directory}")
    folder, whole = complete[-1].parent, json.loads(complete[-1].read_text())
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parts = [safetensors.safe_open(folder / f"part-{n}.safetensors", "pt") for n in range(whole["ranks"])]
    shards = {}
    for name, total in whole["totals"].items():
        size = -(-total // world_size)
        whole_tensor = torch.cat([part.get_tensor(name) for part in parts])
        padded = torch.cat([whole_tensor, whole_tensor.new_zeros(size * world_size - total)])
        shards[name] = padded[rank * size : (rank + 1) * size].clone()
    return int(folder.name.removeprefix("step-")), shards, whole["extra"]


def read_range(parts: Sequence, name: str, start: int, size: int) -> Tensor:
    """`size` elements from `start` on of the tensor whose parts are laid end to end; zeros behind its end."""
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
