def own_file(directory, step: int, rank: int, world_size: int) -> Path:
    return Path(directory) / f"{step}" / f"{rank}-{world_size}.safetensors"


def save_shards(directory, step, shards, totals, extra, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    problem = None
    try:
        own_file(directory, step, rank, world_size).parent.mkdir(parents=True, exist_ok=True)
        for old in Path(directory).glob(f"{step}/{rank}-*.safetensors"):
            old.unlink()
    except OSError as e:
        problem = e
    agree(problem, group)  # nothing old of this step is complete now
    try:
        part = {}
        for name, total in totals.items():
            size = -(-total // world_size)
            part[name] = shards[name].detach()[: max(0, min(size, total - rank * size))].contiguous().clone()
        path = own_file(directory, step, rank, world_size)
        header = {"totals": json.dumps(dict(totals)), "extra": json.dumps(dict(extra))}
        save_file(part, path.with_suffix(".new"), metadata=header)
        on_disk(path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
    except Exception as e:
        problem = e
    agree(problem, group)


def agree(problem, group):
    problems = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, None if problem is None else str(problem), group=group)
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text is not None:
            raise RuntimeError(f"rank {rank} could not save: {text}")


def whole_steps(directory):
    found = {}
    for path in Path(directory).glob("*/*-*.safetensors"):
        step, (rank, world_size) = int(path.parent.name), map(int, path.stem.split("-"))
        found.setdefault((step, world_size), set()).add(rank)
    return [(step, d) for (step, d), ranks in found.items() if ranks == set(range(d))]


def load_shards(directory, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    whole = whole_steps(directory)
    if not whole:
        raise FileNotFoundError(f"{directory} holds no checkpoint of which every part is there")
    step, saved_by = max(whole)
    shards = {}
    with safetensors.safe_open(own_file(directory, step, 0, saved_by), "pt") as f:
        totals = json.loads(f.metadata()["totals"])
        extra = json.loads(f.metadata()["extra"])
        for name, total in totals.items():
            shards[name] = torch.zeros(-(-total // world_size), dtype=f.get_tensor(name).dtype)
    for part in range(saved_by):
        with safetensors.safe_open(own_file(directory, step, part, saved_by), "pt") as f:
            for name, total in totals.items():
                begin = part * -(-total // saved_by)  # of this part, in the flat tensor
                end = begin + f.get_slice(name).get_shape()[0]
                mine = rank * shards[name].numel()
                first, last = max(begin, mine), min(end, mine + shards[name].numel())
                if first < last:
                    shards[name][first - mine : last - mine] = f.get_slice(name)[first - begin : last - begin]
    return step, shards, extra
