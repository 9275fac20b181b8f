def save_shards(
    directory: str | Path,
    step: int,
    shards: Mapping[str, Tensor],
    totals: Mapping[str, int],
    extra: Mapping[str, object],
    group: dist.ProcessGroup,
) -> None:
    """Write a checkpoint of `step` into `directory`, which all ranks share; all ranks call it."""
    rank = dist.get_rank(group)
    place = Path(directory) / str(step)
    place.mkdir(parents=True, exist_ok=True)
    (place / "COMPLETE").unlink(missing_ok=True)
    dist.barrier(group)
    for number, (name, shard) in enumerate(sorted(shards.items())):
        first = rank * len(shard)
        values = shard.detach()[: max(totals[name] - first, 0)].clone()
        target = place / f"{number}.{rank}.safetensors"
        save_file({"values": values}, target, metadata={"name": name, "first": str(first)})
        on_disk(target)
    if rank == 0:
        (place / "about.json").write_text(json.dumps([dist.get_world_size(group), totals, dict(extra)]))
        on_disk(place / "about.json")
    dist.barrier(group)
    if rank == 0:
        (place / "COMPLETE.new").write_text("yes")
        (place / "COMPLETE.new").rename(place / "COMPLETE")
    dist.barrier(group)


def load_shards(
    directory: str | Path, group: dist.ProcessGroup
) -> tuple[int, dict[str, Tensor], dict[str, object]]:
    """(step, shards, extra) of the newest whole checkpoint, cut for the ranks of `group`."""
    steps = [int(marker.parent.name) for marker in Path(directory).glob("*/COMPLETE")]
    if not steps:
        raise FileNotFoundError(f"{directory} holds no checkpoint that was finished")
    place = Path(directory) / str(max(steps))
    saved_by, totals, extra = json.loads((place / "about.json").read_text())
    shards: dict[str, Tensor] = {}
    for path in (p for n in range(saved_by) for p in place.glob(f"*.{n}.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            name, first = file.metadata()["name"], int(file.metadata()["first"])
            stored = file.get_slice("values")
            length = -(-totals[name] // dist.get_world_size(group))
            begin = dist.get_rank(group) * length
            low = max(begin, first)
            high = max(low, min(begin + length, first + stored.get_shape()[0]))
            found = stored[min(low - first, stored.get_shape()[0]) : max(0, high - first)]
            if name not in shards:
                shards[name] = torch.zeros(length, dtype=found.dtype)
            if high > low:
                shards[name][low - begin : high - begin] = found
    return max(steps), shards, extra
