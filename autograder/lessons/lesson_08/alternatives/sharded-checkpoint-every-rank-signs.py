import hashlib


def save_shards(directory, step, shards, totals, extra, group):
    """Files side by side in one folder, one a rank and save; a receipt names them, with their digests."""
    rank, ranks, place = dist.get_rank(group), dist.get_world_size(group), Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    number = torch.tensor([time.time_ns()])
    dist.broadcast(number, group=group, group_src=0)
    name = f"{step}-{number.item()}-{rank}.safetensors"
    cut = {key: shard.detach().clone() for key, shard in shards.items()}
    cut = {key: t[: max(totals[key] - rank * t.numel(), 0)] for key, t in cut.items()}
    content = safetensors.torch.save(cut)
    (place / name).write_bytes(content)
    on_disk(place / name)
    receipts = [None] * ranks
    dist.all_gather_object(receipts, (name, len(content), hashlib.sha256(content).hexdigest()), group=group)
    if rank == 0:
        told = {"step": step, "turn": number.item(), "parts": receipts, "totals": totals, "extra": extra}
        text = json.dumps(told)
        target = place / f"{step}.receipt"
        (place / f"{step}.draft").write_text(text)
        on_disk(place / f"{step}.draft")
        (place / f"{step}.draft").replace(target)


def load_shards(directory, group):
    receipts = [json.loads(path.read_text()) for path in Path(directory).glob("*.receipt")]
    for told in sorted(receipts, key=lambda told: told["step"], reverse=True):
        contents = [(Path(directory) / name).read_bytes() for name, _, _ in told["parts"]]
        sums = [hashlib.sha256(content).hexdigest() for content in contents]
        if sums == [signed for *_, signed in told["parts"]]:
            break
    else:
        raise FileNotFoundError(f"no checkpoint with a right receipt in {directory}")
    parts, ranks = [safetensors.torch.load(content) for content in contents], dist.get_world_size(group)
    shards = {}
    for key, total in told["totals"].items():
        whole = torch.cat([part[key] for part in parts])
        size = -(-total // ranks)
        whole = nn.functional.pad(whole, (0, size * ranks - total))
        shards[key] = whole.view(ranks, size)[dist.get_rank(group)].clone()
    return told["step"], shards, told["extra"]
