"""The parts of `make gpu`: those that everybody can run, and those that need the solutions."""

from __future__ import annotations

from labkit.prove.part import PARTS as FOR_EVERYBODY
from labkit.prove.part import module_part

PARTS = (
    *FOR_EVERYBODY,
    module_part("tests", "every test that is marked gpu", 240, module="autograder.gpu.tests"),
    module_part(
        "references",
        "the reference of each lesson, judged as a student's is, with its tensors on the GPUs",
        180,
        gpu=True,
        module="autograder.gpu.references",
    ),
    module_part(
        "benchmarks",
        "offload, recomputation, TP block and sharding beside their peers",
        300,
        gpu=True,
        module="autograder.gpu.benchmarks",
    ),
)
