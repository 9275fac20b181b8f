"""How the evidence of a training on a grid is held against the training of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_09.training_job import (
    REPEATS,
    asked_in,
    larger_case,
    larger_inputs,
    plain_model,
    rows_in,
    size_of,
    spot_of,
    steps_of,
)
from labkit.checks.shared.beside import State, holds_only, nbytes, same
from labkit.checks.shared.dropped import drops_as_asked
from labkit.checks.shared.proportion import ROOM
from labkit.checks.shared.split import dtype_of, loaded, under

BUFFERS = 1.5  # times its part that a rank may keep besides: for gradients, flat or padded
FEW_BYTES = 256  # of losses, norms and settings that a trainer keeps
MORE_PRODUCTS = 1.6  # times those of one forward and backward: a forward may be computed again
TORCHS_ADDED = 1e-6  # to the norm by torch.nn.utils.clip_grad_norm_, against a division by 0


class GridEvidence(Evidence):
    """One case's answers, to be held against one process."""

    @cached_property
    def full(self) -> State:
        """Parameters of the whole model, in its dtype."""
        return {name: t.to(dtype_of(self.case)) for name, t in under("full.", self.inputs).items()}

    @cached_property
    def reference(self) -> State:
        """STEP.loss, STEP.norm and weights by name, of the whole model and batch.

        Clipped to `max_norm`, or to a hair less, as `torch.nn.utils.clip_grad_norm_` clips: what the ranks
        hold in the end tells which of the two is meant.
        """
        return min((self._trained(added) for added in (0.0, TORCHS_ADDED)), key=self._off)

    def _off(self, state: State) -> float:
        """How far what the ranks hold in the end is from a state, in all."""
        off = 0.0
        for answer in self.answers:
            for name, expected in spot_of(self.case, answer.rank).whole(state).items():
                seen = answer.tensors.get(f"trained.{name}")
                if seen is not None and seen.shape == expected.shape:
                    off += (seen - expected).abs().nan_to_num(0.0).sum().item()
        return off

    def _trained(self, added: float) -> State:
        """One process. added: to the norm, where gradients are clipped."""
        model = plain_model(self.case)
        loaded(model, self.full)
        found: State = {}
        for step in range(steps_of(self.case)):
            model.zero_grad()
            loss = model.loss(
                *(rows_in(self.case, step, self.inputs[name][step]) for name in ("ids", "targets"))
            )
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            _, learning_rate, max_norm = asked_in(self.case, step)
            factor = min(1.0, max_norm / (norm.item() + added))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight.sub_(learning_rate * factor * gradient)
            found |= {f"{step}.loss": loss.detach(), f"{step}.norm": norm}
        return found | {name: weight.detach() for name, weight in model.named_parameters()}


def losses(evidence: GridEvidence) -> Iterator[Finding]:
    """The mean loss of every step, on every rank."""
    return _every_step(evidence, "loss", "the mean loss of all replicas")


def norms(evidence: GridEvidence) -> Iterator[Finding]:
    """The gradient's norm of every step, on every rank."""
    return _every_step(evidence, "norm", "the norm of the whole model's gradient")


def _every_step(evidence: GridEvidence, name: str, told: str) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step in range(steps_of(evidence.case)):
            expected = evidence.reference[f"{step}.{name}"]
            yield same(f"{told} in step {step + 1}: {expected:.6g}", expected, answer, f"{name}.{step}")


def weights(evidence: GridEvidence) -> Iterator[Finding]:
    """What each stage holds after the steps, whole; a tied copy is left to `tied_copies`."""
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        for name, expected in spot.whole(evidence.reference).items():
            if not (spot.copies_table and name == "head.weight"):
                told = f"{name} of the whole model after {steps_of(evidence.case)} steps"
                yield same(told, expected, answer, f"trained.{name}")


def tied_copies(evidence: GridEvidence) -> Iterator[Finding]:
    """The table on the first stage and its copy on the last."""
    expected = evidence.reference["tokens.weight"]
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        names = ["tokens.weight"] * spot.first + ["head.weight"] * spot.copies_table
        for name in names:
            told = f"the whole model's table after {steps_of(evidence.case)} steps"
            yield same(told, expected, answer, f"trained.{name}")


def keeps_its_stage(evidence: GridEvidence) -> Iterator[Finding]:
    """What a rank keeps in memory is its part."""
    whole = sum(map(nbytes, evidence.full.values()))
    for answer in evidence.answers:
        own = spot_of(evidence.case, answer.rank).cut(evidence.full)
        yield holds_only(sum(map(nbytes, own.values())), whole, answer)


def keeps_it_after_steps(evidence: GridEvidence) -> Iterator[Finding]:
    """Nor has a rank gathered more when the steps are over, but for buffers, and the rows of the last one."""
    rows = evidence.inputs["ids"][0]
    for answer in evidence.answers:
        own = sum(map(nbytes, spot_of(evidence.case, answer.rank).cut(evidence.full).values()))
        most = int((1 + BUFFERS) * own) + 2 * nbytes(rows) + FEW_BYTES
        seen = answer.facts["bytes_after_steps"]
        told = f"{own:,} bytes kept by this rank's part after the steps too, with buffers {most:,} at most"
        yield Finding(seen <= most, told, f"{seen:,} bytes", answer.rank)


def keeps_it_while_training(evidence: GridEvidence) -> Iterator[Finding]:
    """As `keeps_it_after_steps`, of the larger model, whoever holds it and in whatever it is hidden."""
    measured = [answer for answer in evidence.answers if "kept_bytes" in answer.facts]
    if measured:
        larger = larger_case(evidence.case)
        full = dict(plain_model(larger).named_parameters())
        whole = sum(map(nbytes, full.values()))
        for answer in measured:
            own = sum(map(nbytes, spot_of(larger, answer.rank).cut(full).values()))
            kept = answer.facts["kept_bytes"]
            told = f"no weights of other ranks kept from the steps of a training ({whole:,} bytes are all)"
            yield Finding(kept <= BUFFERS * own, told, f"{kept:,} bytes", answer.rank)


def computes_its_part(evidence: GridEvidence) -> Iterator[Finding]:
    """A rank multiplies with its part of the weights, not with a whole stage that ranks along tp put
    together. What is computed again in backward is another third.
    """
    for answer in evidence.answers:
        for step, seen in enumerate(answer.facts["products"]):
            expected = _products(evidence, answer.rank, step)
            told = f"about {expected:,} operations of matrix products by this rank's part in step {step + 1}"
            yield Finding(seen <= MORE_PRODUCTS * expected, told, f"{seen:,}", answer.rank)


def _products(evidence: GridEvidence, rank: int, step: int) -> int:
    """Operations of a rank's matrix products in a step: forward, and backward twice as many."""
    spot, (rows, tokens) = spot_of(evidence.case, rank), size_of(evidence.case, step)
    own = spot.cut(evidence.full)
    weights = sum(t.numel() for name, t in own.items() if name.startswith("blocks.") and t.dim() == 2)
    if spot.last:
        weights += own["head.weight" if "head.weight" in own else "tokens.weight"].numel()
    width = evidence.case.params["hidden"]
    return 6 * rows * tokens * weights + 12 * rows * tokens**2 * width * len(spot.layers) // spot.size


def learns_where_measured(evidence: GridEvidence) -> Iterator[Finding]:
    """In the steps that are measured it trains, as the losses say, about: the rest is for others to say."""
    measured = [answer for answer in evidence.answers if "kept_bytes" in answer.facts]
    told = "the losses of one process, about, in the steps whose memory is counted"
    for time in range(REPEATS) if measured else ():
        larger = larger_case(evidence.case)
        reference = GridEvidence(larger, larger_inputs(larger, time), []).reference
        expected = torch.stack([reference[f"{step}.loss"] for step in range(steps_of(larger))])
        for answer in measured:
            seen = answer.tensors[f"larger_losses.{time}"]
            near = bool(((seen - expected).abs() <= ROOM * expected).all())
            yield Finding(near, f"{told}: {_listed(expected)}", _listed(seen), answer.rank)


def _listed(losses: Tensor) -> str:
    return ", ".join(f"{loss:.3g}" for loss in losses.tolist())


def leaves_the_model(evidence: GridEvidence) -> Iterator[Finding]:
    """Training changes nothing of the model and the rows that were handed over."""
    for answer in evidence.answers:
        seen = f"{', '.join(answer.facts['changed'])} changed"
        yield Finding(not answer.facts["changed"], "model, ids and targets as they were", seen, answer.rank)


def holds_no_other(evidence: GridEvidence) -> Iterator[Finding]:
    """A stage says that it has the parameters of its part and no other: no head where tokens are the head."""
    for answer in evidence.answers:
        names = spot_of(evidence.case, answer.rank).whole(evidence.full)
        wanted = {f"trained.{name}" for name in names}
        others = [name.removeprefix("trained.") for name in answer.tensors if name.startswith("trained.")]
        surplus = sorted(name for name in others if f"trained.{name}" not in wanted)
        yield Finding(not surplus, "a stage of its own parameters", f"{', '.join(surplus)} too", answer.rank)


def uses_what_it_is_handed(evidence: GridEvidence) -> Iterator[Finding]:
    """A rank's table, blocks, loss and schedule are those of the parts that were handed over."""
    steps = range(steps_of(evidence.case))
    micro_batches = [asked_in(evidence.case, step)[0] for step in steps]
    for answer in evidence.answers:
        spot, used = spot_of(evidence.case, answer.rank), answer.facts["used"]
        wanted = {"block": len(spot.layers), "schedule": 1, "run_schedule": len(steps)}
        wanted |= {"embedding": 1} if spot.first else {}
        wanted |= {"cross_entropy": sum(micro_batches)} if spot.last else {}
        for name, times in wanted.items():
            told = f"parts.{name}, of the parts that were handed over, called {times} times or more"
            yield Finding(used.get(name, 0) >= times, told, f"{used.get(name, 0)} times", answer.rank)


def works_in_turn(evidence: GridEvidence) -> Iterator[Finding]:
    """As 1F1B has it, a stage keeps no more micro-batches at a time than there are stages from it on."""
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        most, seen = spot.num_stages - spot.stage, max(answer.facts["under_way"], default=0)
        told = f"{most} micro-batches at most between forward and backward on stage {spot.stage}, as in 1F1B"
        yield Finding(seen <= most, told, f"{seen}", answer.rank)


# -- random numbers


def streams_by_tensor_group(evidence: GridEvidence) -> Iterator[Finding]:
    """Each rank's streams belong to its tensor-parallel group, with one seed for all of it."""
    for answer in evidence.answers:
        spot, made = spot_of(evidence.case, answer.rank), answer.facts["streams"]
        members = sorted(spot.groups["tp"])
        told = f"streams made by parts.streams for ranks {members}, and used"
        seen = ", ".join(
            f"for ranks {note['group']}, used {note['shared'] + note['own']} times" for note in made
        )
        right = bool(made) and all(sorted(note["group"]) == members and note["own"] for note in made)
        yield Finding(right, told, seen or "none were made", answer.rank)
        theirs = [evidence.answers[member].facts["streams"] for member in members]
        alike = all([n["seed"] for n in notes] == [n["seed"] for n in made] for notes in theirs)
        yield Finding(alike, f"equal seeds on ranks {members}", "different ones", answer.rank)


def seeds_differ(evidence: GridEvidence) -> Iterator[Finding]:
    """No two tensor-parallel groups have a seed in common, nor have two runs with seeds of their own."""
    owners: dict[int, list[int]] = {}
    for answer in evidence.answers:
        seeds, others = (
            [note["seed"] for note in answer.facts[name]] for name in ("streams", "streams of another seed")
        )
        yield Finding(seeds != others, "other streams with another seed", f"seeds {seeds} again", answer.rank)
        again = [note["seed"] for note in answer.facts["streams of a second trainer"]]
        told = f"a second trainer of the same seed to make streams of its own, with seeds {seeds}"
        yield Finding(again == seeds, told, f"{again or 'none'}", answer.rank)
        least = min([*seeds, *others], default=0)
        yield Finding(least >= 0, "seeds of 0 or more", f"{least}", answer.rank)
        members = sorted(spot_of(evidence.case, answer.rank).groups["tp"])
        for note in answer.facts["streams"]:
            first = owners.setdefault(note["seed"], members)
            told = f"another seed for ranks {members} than for ranks {first}"
            yield Finding(first == members, told, f"seed {note['seed']} for both", answer.rank)


def seeds_of_many_runs(evidence: GridEvidence) -> Iterator[Finding]:
    """`stream_seed` gives every seed, replica and stage of a grid a number of its own."""
    for answer in evidence.answers:
        of_grids: list[list[int]] = answer.facts["seeds"]
        for seeds in of_grids:
            met = sorted(seed for seed, times in Counter(seeds).items() if times > 1)
            told = "another number for each dp, pp and seed from stream_seed"
            yield Finding(not met, told, f"{met[:1]} for two of them", answer.rank)
            yield Finding(min(seeds) >= 0, "numbers of 0 or more", f"{min(seeds)}", answer.rank)


def drops_embeddings(evidence: GridEvidence) -> Iterator[Finding]:
    """The first stage draws from the shared stream for its embeddings too, in every forward, and drops their
    sum as dropout does.
    """
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        forwards = sum(asked_in(evidence.case, step)[0] for step in range(steps_of(evidence.case)))
        wanted = forwards * (2 * len(spot.layers) + spot.first)  # two in a block
        drawn = sum(note["shared"] for note in answer.facts["streams"])
        told = f"{wanted} draws from the shared stream in {forwards} forwards of stage {spot.stage}"
        yield Finding(drawn >= wanted, told, f"{drawn}", answer.rank)
        if spot.first:
            yield from drops_as_asked(answer, evidence.case.params["dropout"])


def rests_in_eval(evidence: GridEvidence) -> Iterator[Finding]:
    """In eval mode the first stage gives the same for the same ids."""
    for answer in evidence.answers:
        drops = answer.facts["drops_in_eval"]
        told = "stage.eval() to drop nothing"
        yield Finding(drops is False, told, "two forwards of the same ids that differ", answer.rank)


def agree_along_tensor(evidence: GridEvidence) -> Iterator[Finding]:
    """What ranks of a tensor-parallel group have whole is equal, and so is what replicas have."""
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        for axis in ("tp", "dp"):
            first = evidence.answers[spot.groups[axis][0]]
            yield from _equal(first, answer, spot.whole(evidence.reference))


def _equal(first: RankAnswer, answer: RankAnswer, names: State) -> Iterator[Finding]:
    for name in names:
        theirs: Tensor | None = first.tensors.get(f"trained.{name}")
        if theirs is None:
            yield Finding(False, f"{name} on rank {first.rank}", "no answer", first.rank)
            continue
        wrong = difference(theirs, answer.tensors.get(f"trained.{name}"))
        told = f"{name} after the steps with dropout as on rank {first.rank}"
        yield Finding(wrong is None, told, wrong or "", answer.rank)
