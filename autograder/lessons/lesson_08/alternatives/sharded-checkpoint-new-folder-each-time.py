import secrets


def save_shards(directory, step, shards, totals, extra, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    name = [f"{step}.{secrets.token_hex(4)}"]
    dist.broadcast_object_list(name, group_src=0, group=group)
    folder, failure = Path(directory) / name[0], None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, t in shards.items():
            size = -(-totals[n] // world_size)
            save_file(
                {"t": t.detach()[: max(0, totals[n] - rank * size)].clone()},
                folder / f"{rank}.{n}.safetensors",
            )
            on_disk(folder / f"{rank}.{n}.safetensors")
    except Exception as e:
        failure = e
    count = torch.tensor(float(failure is not None))
    dist.all_reduce(count, op=dist.ReduceOp.MAX, group=group)
    if failure is not None:
        raise failure
    if count > 0:
        raise OSError("another rank could not save its part")
    if rank == 0:
        text = json.dumps(
            {
                "step": step,
                "folder": name[0],
                "ranks": world_size,
                "totals": dict(totals),
                "extra": dict(extra),
            }
        )
        unfinished = Path(directory) / f"{step}.json.part"
        unfinished.write_text(text)
        on_disk(unfinished)
        unfinished.replace(Path(directory) / f"{step}.json")
    dist.barrier(group)


def load_shards(directory, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    markers = [json.loads(p.read_text()) for p in Path(directory).glob("*.json")]
    if not markers:
        raise FileNotFoundError(f"no checkpoint in {directory}")
    told = max(markers, key=lambda m: m["step"])
    shards = {}
    for n, total in told["totals"].items():
        parts = [
            safetensors.safe_open(Path(directory) / told["folder"] / f"{r}.{n}.safetensors", "pt")
            for r in range(told["ranks"])
        ]
        flat = torch.cat([p.get_slice("t")[:] for p in parts])
        size = -(-total // world_size)
        mine = flat[rank * size : (rank + 1) * size]
        shards[n] = torch.cat([mine, mine.new_zeros(size - mine.numel())])
    return told["step"], shards, told["extra"]
