"""Saving in shards: what `save_shards` and `load_shards` must show."""

from __future__ import annotations

import contextlib
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_08.formulas import HIDES
from labkit.checks.lesson_08.net import FORBIDDEN, STEPS, answer_weights, handed_net, loss_of, net_of
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused, same
from labkit.checks.shared.split import drawn, loaded, under

EXTRA = {"step count": 7, "learning rate": 0.125, "order": [3, 1, 2]}
FULL_DISK = 2**20  # bytes; a part is larger
LARGE = 600_000  # numbers of a flat tensor on 2 ranks, in float32
PATIENCE = 3.0  # seconds a rank waits for one that could not write
MOMENTUM, RATE, MAX_NORM = 0.9, 0.3, 0.4


# -- a folder for all ranks


def shared_folder(rank: Rank) -> Path:
    """A folder of the same name on every rank, which each rank may see or have for itself."""
    name = [tempfile.mkdtemp(prefix="checkpoint-")] if rank.rank == 0 else [None]
    dist.broadcast_object_list(name, src=0, group=rank.group)
    folder = Path(str(name[0]))
    folder.mkdir(exist_ok=True)
    return folder


def exchange_files(folder: Path, group: dist.ProcessGroup) -> None:
    """Every rank ends with the files of all: where ranks do not share a disk, this stands for one."""
    own = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, own, group=group)
    for files in everyones:
        for name, content in files.items():
            path = folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    dist.barrier(group)


def part_of(flat: Tensor, position: int, size: int) -> Tensor:
    """A rank's shard of a flat tensor, padded with zeros."""
    padding = -flat.numel() % size
    return torch.cat([flat, flat.new_zeros(padding)]).chunk(size)[position] if flat.numel() else flat


# -- runs


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Flat tensors by version and name, in the dtypes the case says."""
    return {
        f"{version}.{name}": drawn(case, generator, total).to(getattr(torch, dtype))
        for version in case.params["steps"]
        for name, (total, dtype) in case.params["tensors"].items()
    }


def _hand_shards(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """This rank's shards."""
    return {name: part_of(flat, rank, case.ranks).clone() for name, flat in inputs.items()}


def _totals(case: Case) -> dict[str, int]:
    return {name: total for name, (total, _) in case.params["tensors"].items()}


def _save_and_load(rank: Rank) -> None:
    """Save each step in the case's order; load on as many ranks as the case lists. Facts: files, loaded.SIZE.
    Answers: loaded.SIZE.NAME.
    """
    folder = shared_folder(rank)
    for step in rank.params["steps"]:
        rank.student.save_shards(
            folder, step, under(f"{step}.", rank.inputs), _totals(rank.case), EXTRA, rank.group
        )
    dist.barrier(rank.group)
    rank.fact("files", [_described(p) for p in sorted(folder.rglob("*")) if p.is_file()])
    exchange_files(folder, rank.group)
    for size in rank.params["load_on"]:
        group = dist.new_group(list(range(size)))
        if rank.rank < size:
            _load(rank, folder, group, f"loaded.{size}")
        dist.barrier(rank.group)


def _described(path: Path) -> JSON:
    """Name, bytes, kind, and bytes without the header of safetensors, which begins with its length."""
    with path.open("rb") as file:
        head = file.read(9)
    kind = "safetensors" if head[8:9] == b"{" else "json" if head[:1] in b"{[" else "other"
    header = 8 + int.from_bytes(head[:8], "little") if kind == "safetensors" else 0
    size = path.stat().st_size
    return [path.name, size, kind, size - header]


def _load(rank: Rank, folder: Path, group: dist.ProcessGroup, name: str) -> None:
    step, shards, extra = rank.student.load_shards(folder, group)
    rank.fact(name, {"step": step, "names": sorted(shards), "extra": extra})
    for key, tensor in shards.items():
        rank.answer(f"{name}.{key}", tensor)


def _fill_the_disk(rank: Rank) -> None:
    """Save a step, then another while one rank cannot write; load. Fact: saving, loaded."""
    folder = shared_folder(rank)
    first, second = rank.params["steps"]
    rank.student.save_shards(
        folder, first, under(f"{first}.", rank.inputs), _totals(rank.case), EXTRA, rank.group
    )
    impatient = dist.new_group(list(range(rank.world_size)), timeout=timedelta(seconds=PATIENCE))
    over = time.monotonic() + PATIENCE + 1.5
    full = contextlib.nullcontext() if rank.rank != rank.params["full_on"] else _little_room()
    with rank.expect_error("saving"), full:
        rank.student.save_shards(
            folder, second, under(f"{second}.", rank.inputs), _totals(rank.case), EXTRA, impatient
        )
    time.sleep(max(0.0, over - time.monotonic()))  # whoever waits for the others has given up by then
    exchange_files(folder, rank.group)
    _load(rank, folder, rank.group, f"loaded.{rank.world_size}")


@contextlib.contextmanager
def _little_room() -> Iterator[None]:
    """No file may grow beyond FULL_DISK bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _load_nothing(rank: Rank) -> None:
    """Load from an empty folder. Fact: refusal."""
    folder = shared_folder(rank)
    with rank.expect_error("refusal"):
        rank.student.load_shards(folder, rank.group)


# -- all parts together: stage 3 on 4 ranks, resumed on 3


def _train_inputs(case: Case, generator: torch.Generator) -> Inputs:
    found: Inputs = {
        f"full.{name}": drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
        for name, tensor in net_of(case).named_parameters()
    }
    shape = (case.ranks, STEPS, case.params["rows"], case.params["width"])
    return found | {name: drawn(case, generator, *shape) for name in ("x", "target")}


def _hand_rows(case: Case, inputs: Inputs, rank: int) -> Inputs:
    return {name: tensor[rank] if name in ("x", "target") else tensor for name, tensor in inputs.items()}


def _train_save_resume(rank: Rank) -> None:
    """A step on all ranks, a checkpoint, and the rest on `resume_on` of them. Answers: weights STEP.NAME."""
    folder = shared_folder(rank)
    run = _Run(rank, handed_net(rank), rank.group)
    run.step(0)
    rank.student.save_shards(folder, 1, run.state(), run.totals, {"trained": 1}, rank.group)
    exchange_files(folder, rank.group)
    fewer = dist.new_group(list(range(rank.params["resume_on"])))
    if rank.rank < rank.params["resume_on"]:
        again = _Run(rank, net_of(rank.case).to(rank.device), fewer)
        step, state, extra = rank.student.load_shards(folder, fewer)
        rank.fact("resumed", [step, extra])
        again.restore(state)
        for number in range(1, STEPS):
            again.step(number)
    dist.barrier(rank.group)


class _Run:
    """Stage 3 with momentum, clipped by the global norm: every part the student's own."""

    def __init__(self, rank: Rank, net: Any, group: dist.ProcessGroup):
        self.rank, self.group, size = rank, group, dist.get_world_size(group)
        self.totals: dict[str, int] = {}
        self.owned: list[int] = []
        for number, unit in enumerate(net.units()):
            numels = [p.numel() for p in unit.parameters()]
            _, pieces = rank.student.flat_layout(numels, size)
            own = pieces[dist.get_rank(group)]
            self.owned.append(sum(stop - start for _, start, stop in own))
            self.totals |= {f"weights.{number}": sum(numels), f"momentum.{number}": sum(numels)}
        self.sharded = rank.student.FullyShardedModule(net, net.units(), group)
        self.momentum = [torch.zeros_like(shard) for shard in self.sharded.shards]

    def step(self, number: int) -> None:
        """One step on this rank's rows."""
        x, target = (self.rank.inputs[name][number] for name in ("x", "target"))
        loss_of(self.sharded(x), target).backward()
        self.rank.student.clip_grad_norm(self.sharded.shards, self.owned, [], MAX_NORM, self.group)
        with torch.no_grad():
            for shard, moment in zip(self.sharded.shards, self.momentum, strict=True):
                moment.mul_(MOMENTUM).add_(shard.grad)
                shard.sub_(RATE * moment)
                shard.grad = None
        answer_weights(self.rank, self.sharded.full_weights(), number)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        weights = {f"weights.{n}": shard for n, shard in enumerate(self.sharded.shards)}
        return weights | {f"momentum.{n}": moment for n, moment in enumerate(self.momentum)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        for n, shard in enumerate(self.sharded.shards):
            shard.copy_(state[f"weights.{n}"])
            self.momentum[n].copy_(state[f"momentum.{n}"])


def goes_on(evidence: Evidence) -> Iterator[Finding]:
    """Weights as in one process, which takes the ranks' rows that were there in each step."""
    case, net = evidence.case, net_of(evidence.case)
    loaded(net, under("full.", evidence.inputs))
    momentum = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for step in range(STEPS):
        ranks = range(case.ranks if step == 0 else case.params["resume_on"])
        _plain_step(net, momentum, evidence.inputs, step, ranks)
        for answer in evidence.answers[: len(ranks)]:
            for name, weight in net.named_parameters():
                told = f"{name} after step {step + 1} (saved on {case.ranks} ranks after step 1)"
                yield same(told, weight.detach(), answer, f"weights {step}.{name}")


def _plain_step(
    net: Any, momentum: Mapping[str, Tensor], inputs: Inputs, step: int, ranks: Sequence[int]
) -> None:
    net.zero_grad()
    losses = [loss_of(net(inputs["x"][rank, step]), inputs["target"][rank, step]) for rank in ranks]
    torch.stack(losses).mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
    with torch.no_grad():
        for name, p in net.named_parameters():
            momentum[name].mul_(MOMENTUM).add_(p.grad)
            p.sub_(RATE * momentum[name])


# -- judges


def comes_back(newest: Callable[[Case], int]) -> Callable[[Evidence], Iterator[Finding]]:
    """On every number of ranks the shards of the newest whole checkpoint, and what went with them."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        case, step = evidence.case, newest(evidence.case)
        for size in case.params["load_on"]:
            for answer in evidence.answers[:size]:
                fact = answer.facts[f"loaded.{size}"]
                seen = {"step": fact["step"], "extra": fact["extra"]}
                wanted = {"step": step, "extra": EXTRA}
                yield Finding(seen == wanted, f"{wanted} on {size} ranks", str(seen), answer.rank)
                for name, flat in under(f"{step}.", evidence.inputs).items():
                    told = f"{name} of step {step}: shard {answer.rank} of {size}, as saved on {case.ranks}"
                    part = part_of(flat, answer.rank, size)
                    yield same(told, part, answer, f"loaded.{size}.{name}")

    return judge


def last(case: Case) -> int:
    """The step with the highest number."""
    return int(max(case.params["steps"]))


def first(case: Case) -> int:
    """The step that was saved whole, before the disk was full."""
    return int(case.params["steps"][0])


def saving_failed(evidence: Evidence) -> Iterator[Finding]:
    """The rank that could not write said so."""
    answer = evidence.answers[evidence.case.params["full_on"]]
    seen = answer.facts["saving"]
    said = seen["raised"] or "no error"
    yield Finding(seen["raised"] is not None, "an error on the rank that could not write", said, answer.rank)


def parts_only(evidence: Evidence) -> Iterator[Finding]:
    """The files together hold the tensors and nothing more, and none is larger than a rank's share."""
    case = evidence.case
    whole = sum(flat.numel() * flat.element_size() for flat in evidence.inputs.values())
    share = whole / case.ranks
    files = {tuple(f) for answer in evidence.answers for f in answer.facts["files"]}
    tensors = [f for f in files if f[2] == "safetensors"]
    odd = sorted(f[0] for f in files if f[2] == "other")
    yield Finding(not odd, "safetensors and JSON files only", f"also {', '.join(odd)}")
    total = sum(content for *_, content in tensors)
    told = f"{whole:,} bytes of tensors on disk, no padding"
    yield Finding(total == whole, told, f"{total:,} in {len(tensors)} files")
    largest = max((size for _, size, *_ in tensors), default=0)
    told = f"no file above a rank's share, {share:,.0f} bytes and a header"
    yield Finding(largest <= share + 2048, told, f"{largest:,}")


def checkpoint_case(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
    """tensors: name -> [total, dtype]; steps: saved in this order; load_on: numbers of ranks."""
    tensors = {"weights": [23, "float64"], "moments": [23, "float32"], "small": [2, "bfloat16"]}
    sizes = {"tensors": tensors, "steps": [4], "load_on": [ranks], **params}
    return Case(name, ranks, sizes, seed, kind=kind, timeout=60.0)


def full_disk_case(name: str, ranks: int, full_on: int, seed: int) -> Case:
    """One rank cannot write its part of the second checkpoint."""
    tensors = {"weights": [LARGE // 2 * ranks, "float32"]}
    return checkpoint_case(
        name, "full-disk", ranks, seed, tensors=tensors, steps=[3, 9], full_on=full_on, load_on=[ranks]
    )


def own_parts_case(name: str, ranks: int, resume_on: int, seed: int) -> Case:
    """Stage 3 with the student's own parts, saved and resumed."""
    sizes = {"width": 3, "inner": 5, "rows": 4, "resume_on": resume_on}
    return Case(name, ranks, sizes, seed, kind="own-parts", own_parts=True, timeout=60.0)


def checkpoint_cases(seed: int) -> list[Case]:
    """The visible cases."""
    large = {"weights": [40_001, "float32"], "moments": [40_001, "float64"]}
    return [
        checkpoint_case("saved and loaded on two ranks", "same-ranks", 2, seed),
        checkpoint_case("saved on 4, loaded on 3, 2 and 1", "other-ranks", 4, seed, load_on=[3, 2, 1]),
        checkpoint_case("forty thousand numbers", "on-disk", 4, seed, tensors=large),
        checkpoint_case("three steps", "several", 2, seed, steps=[9, 100, 20]),
        full_disk_case("a full disk on the last rank", 2, 1, seed),
        full_disk_case("a full disk on the first rank", 2, 0, seed),
        checkpoint_case("an empty folder", "nothing", 2, seed, steps=[], tensors={}),
        own_parts_case("stage 3, saved on 4 ranks, resumed on 3", 4, 3, seed),
        checkpoint_case("one rank", "same-ranks", 1, seed),
    ]


_SAVED = Run(_save_and_load, _inputs, _hand_shards)

SHARDED_CHECKPOINT = Exercise(
    "08.sharded-checkpoint",
    "A checkpoint that other numbers of ranks can read",
    ("save_shards", "load_shards"),
    dict.fromkeys(("same-ranks", "other-ranks", "on-disk", "several"), _SAVED)
    | {
        "full-disk": Run(_fill_the_disk, _inputs, _hand_shards),
        "nothing": Run(_load_nothing),
        "own-parts": Run(_train_save_resume, _train_inputs, _hand_rows),
    },
    checkpoint_cases,
    (
        Property(
            "same-ranks",
            "numbers",
            2,
            "What was saved comes back on as many ranks: every shard, its dtype, the step and `extra`.",
            "only rank 0's shard was written, or a dtype was changed on the way",
            {"same-ranks": comes_back(last)},
        ),
        Property(
            "other-ranks",
            "numbers",
            3,
            "It comes back on fewer ranks, cut for them: ranges that span parts, padding at the end only.",
            "a shard was read from one part only, or what is behind the end is not zero",
            {"other-ranks": comes_back(last)},
        ),
        Property(
            "own-part-only",
            "mechanism",
            2,
            "Each rank writes its own part, without padding, as safetensors.",
            "the whole tensor was gathered and written, or the padding too, or torch.save was used",
            {"on-disk": parts_only},
        ),
        Property(
            "newest",
            "robustness",
            1,
            "Of several checkpoints the one with the highest step is loaded.",
            "names were compared as text: step-9 comes behind step-100",
            {"several": comes_back(last)},
        ),
        Property(
            "half-written",
            "robustness",
            3,
            "A checkpoint that one rank could not write is never taken for a whole one: the one before is"
            " loaded.",
            "the file that says it is whole was written before all parts were, or its folder is enough",
            {"full-disk": every(saving_failed, comes_back(first))},
        ),
        Property(
            "nothing-there",
            "robustness",
            1,
            "Where there is no checkpoint, loading raises FileNotFoundError.",
            "",
            {"nothing": is_refused("refusal", "FileNotFoundError")},
        ),
        Property(
            "own-parts",
            "numbers",
            3,
            "Stage 3 with your own module, norm, layout and checkpoint goes on as if nothing had happened.",
            "an earlier exercise does not pass yet",
            {"own-parts": goes_on},
        ),
    ),
    builds_on=("08.flat-layout", "08.fully-sharded-module", "08.global-grad-norm"),
    forbids=FORBIDDEN,
    hides=HIDES,
)
