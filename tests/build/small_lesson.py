"""A whole lesson in miniature, with the checks it goes with, for the tests of the build."""

from __future__ import annotations

from pathlib import Path

from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run

SOURCE = '''\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "90", title: "Doubling", minutes: 25}
# ---
#
# A note to whoever edits this lesson; students never see it.

# %% [markdown]
# # Doubling
# What is twice $x$?

# %% tags=["setup"]
import labkit

# %load_ext labkit

# %% predict="ranks"
your_guess = ...

# %% reveals="ranks"
print(2, your_guess)

# %% [markdown] reveals="ranks"
# Two, of course.

# %% [markdown]
# ### Exercise: double it
# Twice, on every rank.

# %% exercise="90.double-it" difficulty=2 minutes=15
class Doubler:
    """Doubles."""

    def forward(self, x):
        ### BEGIN SOLUTION
        return 2 * x  # the secret way
        ### END SOLUTION

    def backward(self, grad):
        ### BEGIN SOLUTION
        if grad is None:
            return None
        return 2 * grad
        ### END SOLUTION


# %% check="90.double-it"
labkit.check("90.double-it", Doubler)

# %% [markdown]
# ## Where this leaves you

# %% scoreboard=true
labkit.scoreboard()
'''


def exercise(exercise_id: str = "90.double-it", names: tuple[str, ...] = ("Doubler",)) -> Exercise:
    """An exercise of the small lesson; the build looks at its id, names and properties only."""

    def nothing(evidence: Evidence) -> list[Finding]:
        return []

    properties = (
        Property("forward-values", "numbers", 3, "the values are doubled", on={"values": nothing}),
        Property("one all-reduce", "mechanism", 2, "one all-reduce", on={"values": nothing}),
    )
    return Exercise(
        id=exercise_id,
        title="Double it",
        names=names,
        properties=properties,
        cases=lambda seed: [],
        runs={"values": Run(lambda rank: None)},
    )


EXERCISES = (exercise(),)


def write(folder: Path, source: str = SOURCE) -> Path:
    """The lesson's source as a file `90_doubling.py` in `folder`."""
    path = folder / "90_doubling.py"
    path.write_text(source, encoding="utf-8")
    return path
