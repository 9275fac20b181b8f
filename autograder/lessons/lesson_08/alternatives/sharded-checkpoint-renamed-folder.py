def save_shards(directory, step, shards, totals, extra, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    folder = Path(directory) / f"writing-{step}"
    for turn in range(size):  # what was saved of this step before is not whole from here on
        if rank == turn and (Path(directory) / f"done-{step}").exists():
            (Path(directory) / f"done-{step}").rename(folder)
        dist.barrier(group)
    folder.mkdir(parents=True, exist_ok=True)
    mine = {}
    for name, shard in shards.items():
        begin = rank * shard.numel()
        mine[name] = shard.detach()[: max(0, min(shard.numel(), totals[name] - begin))].clone()
    metadata = {"ranks": str(size), "totals": json.dumps(dict(totals)), "extra": json.dumps(dict(extra))}
    error = None
    try:
        save_file(mine, folder / f"{rank}.safetensors", metadata=metadata)
        on_disk(folder / f"{rank}.safetensors")
    except Exception as problem:
        error = problem
    failed = torch.tensor(float(error is not None))
    dist.all_reduce(failed, group=group)
    if error is not None:
        raise error
    if failed:
        raise OSError("another rank could not write its part")
    for turn in range(size):  # one after the other: on a disk of all ranks the first renames it
        if rank == turn and folder.exists():
            folder.rename(Path(directory) / f"done-{step}")
        dist.barrier(group)


def load_shards(directory, group):
    steps = [int(path.name.split("-")[1]) for path in Path(directory).glob("done-*")]
    if not steps:
        raise FileNotFoundError(f"{directory} has no checkpoint")
    folder = Path(directory) / f"done-{max(steps)}"
    with safetensors.safe_open(folder / "0.safetensors", "pt") as first:
        about = first.metadata()
    totals, shards = json.loads(about["totals"]), {}
    parts = [safetensors.safe_open(folder / f"{n}.safetensors", "pt") for n in range(int(about["ranks"]))]
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    for name, total in totals.items():
        whole = torch.cat([part.get_tensor(name) for part in parts])
        shard = -(-total // size)
        own = whole[rank * shard : (rank + 1) * shard]
        shards[name] = torch.nn.functional.pad(own, (0, shard - own.numel()))
    return max(steps), shards, json.loads(about["extra"])
