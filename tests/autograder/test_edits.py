"""Single edits of a source: each operator finds its places, and what comes out is Python that differs."""

from __future__ import annotations

import ast

import pytest

from autograder.selftest.edits import OPERATORS, edits
from autograder.selftest.variants import variants
from labkit.checks import registry


def becomes(source: str, operator: str) -> set[str]:
    return {edit.becomes for edit in edits(source) if edit.operator == operator}


@pytest.mark.parametrize(
    ("operator", "source", "expected"),
    [
        ("statement deleted", "x += y", {"pass"}),
        ("wrapper dropped", "x.clone()", {"x"}),
        ("wrapper dropped", "(x + y).contiguous().view(3)", {"(x + y).view(3)"}),
        ("wrapper dropped", "copy.deepcopy(x)", {"x"}),
        ("wrapper dropped", "Copy.apply(x, group)", {"x"}),
        ("keyword dropped", "f(x, a=1, b=2)", {"f(x, b=2)", "f(x, a=1)"}),
        ("keyword dropped", "zip(x, y, strict=True)", set()),
        ("constant", "zip(x, y, strict=True)", set()),
        ("arguments exchanged", "f(x, y, z)", {"f(y, x, z)", "f(x, z, y)"}),
        ("operator", "(a + b) / c", {"(a - b) / c", "(a + b) // c"}),
        ("operator", "a += b", {"a -= b", "a = b"}),
        ("operator", "not a and b", {"not a or b", "a and b"}),
        ("operator", "-a", {"a"}),
        ("comparison", "0 <= a < b", {"0 < a < b", "0 <= a <= b"}),
        ("comparison", "a is not None", {"a is None"}),
        ("constant", "f(3)", {"f(4)", "f(2)", "f(0)"}),
        ("constant", "f(1000)", {"f(2000)", "f(0)"}),
        ("constant", "f(True)", {"f(False)"}),
        ("one branch", "a if b else c", {"a", "c"}),
        ("one branch", "[a for a in b if a]", {"[a for a in b if True]"}),
        ("rank, size or group", "f(rank, self.group)", {"f(0, self.group)", "f(rank, None)"}),
        ("rank, size or group", "dist.get_world_size(group)", {"2", "dist.get_world_size(None)"}),
        ("gradient mode", "f(torch.no_grad())", {"f(torch.enable_grad())"}),
    ],
)
def test_what_an_operator_makes_of_a_line(operator: str, source: str, expected: set[str]) -> None:
    assert becomes(source, operator) == expected


def test_one_branch_of_a_statement() -> None:
    assert becomes("if a:\n    b\nelse:\n    c", "one branch") == {"if True:", "if False:"}


def test_a_forward_pass_without_a_graph() -> None:
    source = "class A:\n    def forward(self, x):\n        return x"
    (edit,) = [edit for edit in edits(source) if edit.operator == "gradient mode"]
    assert edit.source == source.replace("    def", "    @torch.no_grad()\n    def")


def test_only_the_lines_asked_for_are_edited() -> None:
    source = "x = 1\ny = 2\nz = 3"
    assert {edit.was for edit in edits(source, 2, 2)} == {"y = 2"}


def test_words_and_types_are_left_alone() -> None:
    source = '''def f(x: Optional[4]) -> Tuple[3]:
    """Two or 2."""
    raise ValueError(f"expected {x + 1}", 5)'''
    assert {edit.operator for edit in edits(source)} == {"statement deleted"}


def test_a_name_bound_once_keeps_its_binding() -> None:
    """Without it every such edit would be the same NameError."""
    assert becomes("x = f()\ng(x)", "statement deleted") == {"pass"}
    assert len([e for e in edits("x = f()\ng(x)") if e.operator == "statement deleted"]) == 1
    assert len([e for e in edits("x = f()\nx = h(x)\ng(x)") if e.operator == "statement deleted"]) == 3


def test_positions_count_characters_beyond_ascii() -> None:
    assert "x = 'α', 2 # β" in {e.becomes for e in edits("x = 'α', 1 # β") if e.operator == "constant"}


@pytest.mark.days
@pytest.mark.parametrize("lesson", registry.lessons())
def test_every_reference_has_variants(lesson: str) -> None:
    for exercise in registry.exercises(lesson):
        found = variants(exercise.id)
        assert len(found) >= 5, exercise.id
        assert {variant.edit.operator for variant in found} <= set(OPERATORS)
        for variant in found:
            ast.parse(variant.edit.source)
            assert variant.edit.was != variant.edit.becomes
