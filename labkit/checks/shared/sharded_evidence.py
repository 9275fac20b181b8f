"""Judges what the ranks of a split layer reported: the other side of `sharded_layer`.

Every expected value comes from the unsharded layer, run in this process by stock PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.old_form import Finding
from labkit.checks.shared.places import Place, groups_of, place_of
from labkit.checks.shared.sharded_layer import STEPS, Split, full_weights, loaded, train

SLACK_BYTES = 64  # beyond its share, a layer may keep a few scalars
Call = tuple[str, int]  # operation, bytes of this rank's tensor


@dataclass(frozen=True)
class Evidence:
    """One case's answers, to be held against the unsharded layer. Each method yields findings."""

    case: Case
    inputs: Inputs
    answers: Sequence[RankAnswer]
    split: Split

    @cached_property
    def references(self) -> list[dict[str, Tensor]]:
        """For each group, every tensor its ranks report, unsharded."""
        return [_reference(self.case, self.inputs, self.split, i) for i in range(len(groups_of(self.case)))]

    def values(self, property_name: str, *kinds: str) -> Iterator[Finding]:
        """Each tensor of these kinds is the rank's block of the unsharded one.

        kinds: "output", "input_grad", "grad" or "trained" for all parameters, "grad.weight" for one.
        """
        for answer in self.answers:
            place = place_of(self.case, answer.rank)
            for name, full in self.references[place.index].items():
                if name in kinds or name.partition(".")[0] in kinds:
                    dim = self.split.dim_of(name)
                    yield compared(
                        property_name, describe(name, dim, place), place.block(full, dim), answer, name
                    )

    def traffic(self, property_name: str, phase: str, *expected: Call) -> Iterator[Finding]:
        """Each rank took part in exactly these calls. A group of one may communicate or not."""
        for answer in self.answers:
            if place_of(self.case, answer.rank).size > 1:
                yield traffic(property_name, phase, expected, answer)

    def bytes_of(self, name: str, dim: int | None) -> int:
        """Bytes of one rank's part of an input tensor that is cut along `dim`."""
        return nbytes(place_of(self.case, 0).block(self.inputs[name][0], dim))

    def stored(self) -> Iterator[Finding]:
        """Each rank holds its blocks and nothing more, and the layer they came from is as it was."""
        full = full_weights(self.inputs)
        whole = sum(map(nbytes, full.values()))
        for answer in self.answers:
            place = place_of(self.case, answer.rank)
            blocks = {name: place.block(t, self.split.parameters[name]) for name, t in full.items()}
            shapes: dict[str, list[int]] = {name: list(block.shape) for name, block in blocks.items()}
            wanted, seen = f"parameters {_shapes(shapes)}", f"parameters {_shapes(answer.facts['shapes'])}"
            yield finding("stored-shards", answer.facts["shapes"] == shapes, wanted, seen, answer)
            for name, t in full.items():
                kept = f"{name} of the full layer as it was handed over"
                yield compared("stored-shards", kept, t, answer, f"full.{name}")
            share, held = sum(map(nbytes, blocks.values())), answer.facts["held_bytes"]
            wanted = f"{share:,} bytes kept in memory by this rank's layer (the whole layer: {whole:,})"
            within = share <= held <= share + SLACK_BYTES
            yield finding("stored-shards", within, wanted, f"{held:,} bytes", answer)

    def own_shard(self, property_name: str) -> Iterator[Finding]:
        """The output depends on the rank's own block of the weights and on no other."""
        for answer in self.answers:
            plain, others, own = (answer.tensors[f"output.{run}"] for run in ("plain", "others", "own"))
            change = difference(plain, others)
            wanted = (
                "the same output, whatever this rank's copy of the full layer holds outside its own block"
            )
            yield finding(property_name, change is None, wanted, change or "", answer)
            wanted = "another output when this rank's own block changes"
            depends = difference(plain, own) is not None
            yield finding(property_name, depends, wanted, "the same output", answer)

    def within_group(self, property_name: str) -> Iterator[Finding]:
        """Nothing was sent outside the group that was handed over."""
        for answer in self.answers:
            yield within_group(property_name, self.case, answer)

    def refusal(self) -> Iterator[Finding]:
        """Sizes that do not divide were refused with a ValueError that names them."""
        names = [str(self.case.params["uneven"]), str(self.case.ranks)]
        for answer in self.answers:
            fact: Mapping[str, JSON] = answer.facts["refusal"]
            clear = "ValueError" in (fact.get("kinds") or []) and all(n in fact["message"] for n in names)
            said = f"{fact['raised']}: {fact['message']}" if fact["raised"] else "a layer, and no error"
            wanted = f"a ValueError that names {' and '.join(names)}"
            yield finding("uneven-sizes", clear, wanted, said, answer)


def _reference(case: Case, inputs: Inputs, split: Split, index: int) -> dict[str, Tensor]:
    """The unsharded layer on the inputs of one group."""
    layer = loaded(split.plain(case), full_weights(inputs))
    x = inputs["x"][index].clone().requires_grad_()
    out = layer(x)
    out.backward(inputs["grad_output"][index])
    assert x.grad is not None
    tensors = {"output": out.detach(), "input_grad": x.grad}
    tensors |= {f"grad.{n}": p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
    train(layer, [(inputs[f"x{step}"][index], inputs[f"target{step}"][index]) for step in range(STEPS)])
    return tensors | {f"trained.{n}": p.detach() for n, p in layer.named_parameters()}


def finding(name: str, passed: bool, expected: str, seen: str, answer: RankAnswer) -> Finding:
    """A finding about one rank."""
    return Finding(name, passed, expected, seen, rank=answer.rank)


def compared(property_name: str, what: str, expected: Tensor, answer: RankAnswer, name: str) -> Finding:
    """Whether the tensor a rank reported as `name` equals `expected`, which `what` puts in words."""
    wrong = difference(expected, answer.tensors.get(name))
    return finding(property_name, wrong is None, what, wrong or "", answer)


def traffic(property_name: str, phase: str, expected: Sequence[Call], answer: RankAnswer) -> Finding:
    """Whether a rank took part in exactly the expected calls, in that order."""
    calls = [(c["op"], c["num_bytes"]) for c in answer.collectives.get(phase, [])]
    wanted, seen = f"{phase}: {calls_text(expected)}", f"{phase}: {calls_text(calls)}"
    return finding(property_name, list(expected) == calls, wanted, seen, answer)


def within_group(property_name: str, case: Case, answer: RankAnswer) -> Finding:
    """Whether all of a rank's calls were among the members of its group."""
    members = place_of(case, answer.rank).members
    used = sorted({tuple(sorted(c["group"])) for calls in answer.collectives.values() for c in calls})
    seen = " and ".join(str(list(ranks)) for ranks in used)
    right = all(list(ranks) == sorted(members) for ranks in used)
    return finding(
        property_name, right, f"calls among ranks {members} only", f"calls among ranks {seen}", answer
    )


def nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def describe(name: str, dim: int | None, place: Place) -> str:
    """In words, what the tensor reported as `name` should be."""
    kind, _, parameter = name.partition(".")
    what = {
        "output": "the unsharded layer's output",
        "input_grad": "the unsharded layer's gradient of x",
        "grad": f"the unsharded layer's gradient of {parameter}",
        "trained": f"{parameter} as the unsharded layer has it after {STEPS} steps of SGD",
    }[kind]
    return what if dim is None else f"block {place.position} of {place.size} along dim {dim} of {what}"


def calls_text(calls: Sequence[Call]) -> str:
    """Calls in words: all_reduce of 8 bytes, ..."""
    return ", ".join(f"{op} of {num_bytes:,} bytes" for op, num_bytes in calls) or "no communication"


def _shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "none"
