def everyone_did(error: Exception | None, group: dist.ProcessGroup) -> None:
    failed = torch.tensor([0 if error is None else 1])
    dist.all_reduce(failed, group=group)
    if error is not None:
        raise error
    if failed.item():
        raise RuntimeError(f"{int(failed.item())} other ranks could not write their files: no checkpoint")


def attempt(work, group: dist.ProcessGroup) -> None:
    error = None
    try:
        work()
    except Exception as problem:
        error = problem
    everyone_did(error, group)


def save_shards(directory, step, shards, totals, extra, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    folder = Path(directory) / f"step_{step:010d}"

    def write(name, writer):
        unfinished = folder / f"{name}.unfinished"
        writer(unfinished)
        on_disk(unfinished)
        unfinished.rename(folder / name)

    def begin():
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            (folder / "whole.json").unlink(missing_ok=True)

    def part():
        own = {}
        for name, shard in shards.items():
            size = -(-totals[name] // world_size)
            mine = max(0, min(size, totals[name] - rank * size))
            own[name] = shard.detach()[:mine].clone()
        write(f"part_{rank}_of_{world_size}.safetensors", lambda path: save_file(own, path))

    def marker():
        if rank == 0:
            text = json.dumps({"ranks": world_size, "totals": dict(totals), "extra": dict(extra)})
            write("whole.json", lambda path: path.write_text(text))

    for work in (begin, part, marker):
        attempt(work, group)


def load_shards(directory, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    newest = [None]
    if rank == 0:
        whole = sorted(
            Path(directory).glob("step_*/whole.json"), key=lambda path: int(path.parent.name[len("step_") :])
        )
        newest = [str(whole[-1]) if whole else None]
    dist.broadcast_object_list(newest, group=group, group_src=0)
    if newest[0] is None:
        raise FileNotFoundError(f"no whole checkpoint in {directory}")
    marker = Path(newest[0])
    told = json.loads(marker.read_text())
    shards = {}
    saved_by = told["ranks"]
    files = [
        safetensors.safe_open(marker.parent / f"part_{r}_of_{saved_by}.safetensors", "pt")
        for r in range(saved_by)
    ]
    for name, total in told["totals"].items():
        size, old = -(-total // world_size), -(-total // saved_by)
        start, stop = rank * size, min((rank + 1) * size, total)
        pieces = []
        for r, file in enumerate(files):
            low, high = max(start, r * old) - r * old, min(stop, (r + 1) * old, total) - r * old
            if low < high:
                pieces.append(file.get_slice(name)[low:high])
        dtype = files[0].get_tensor(name).dtype if not pieces else pieces[0].dtype
        shard = torch.zeros(size, dtype=dtype)
        if pieces:
            got = torch.cat(pieces)
            shard[: got.numel()] = got
        shards[name] = shard
    return int(marker.parent.name.removeprefix("step_")), shards, told["extra"]
