"""What people choose when the hub starts their server: offered within a site's limits, nothing else taken.

What a person sends is compared with what is offered, and what is offered goes on to sbatch: no text of theirs
ever stands in a batch script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.show.html import render
from labkit.slurm.site import Site
from labkit.slurm.units import mib_of, minutes_of, slurm_memory, slurm_time

_LEAST_CORES, _LEAST_MIB, _LEAST_MINUTES = 2, 4096, 30


@dataclass(frozen=True)
class Choice:
    """One thing to choose. values: as sbatch takes them, smallest first; limit: why there are no more.

    setting: its name among the hub's [slurm] settings; default: what those say.
    """

    name: str
    label: str
    setting: str
    values: tuple[str, ...]
    default: str
    limit: str

    def check(self, value: object) -> str:
        """The value, if it is offered. ValueError says what is."""
        if isinstance(value, (str, int)) and str(value) in self.values:
            return str(value)
        there = ", ".join(self.values)
        raise ValueError(f"{self.label}: {_short(value)} is not offered; there is {there} ({self.limit})")


def chosen(choices: Sequence[Choice], told: Mapping[str, object]) -> dict[str, str]:
    """The [slurm] settings that somebody chose. ValueError for what is not offered."""
    known = {one.name: one for one in choices}
    for name in told:
        if name not in known:
            raise ValueError(f"nothing called {_short(name)} is to be chosen; there is {', '.join(known)}")
    return {known[name].setting: known[name].check(value) for name, value in told.items()}


def from_form(choices: Sequence[Choice], data: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A form that was sent: each field's one value, checked. ValueError for what is not offered."""
    told = {name: values[0] if len(values) == 1 else values for name, values in data.items()}
    chosen(choices, told)
    return {name: str(value) for name, value in told.items()}


def form(choices: Sequence[Choice], before: Mapping[str, object]) -> str:
    """The fields of the page that the hub shows before it starts a server, as HTML."""
    return render("choices", choices=choices, before=before)


def offered(site: Site, slurm: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> tuple[Choice, ...]:
    """What there is to choose, with the hub's [slurm] settings as defaults. What has one value only is no
    choice.

    lists: the operator's own values for "gpus", "cpus", "mem" and "time"; an empty list stands for doublings
    up to the site's limit. ValueError when one of them, or a default, is beyond it.
    """
    return tuple(one for one in _all(site, slurm, lists) if len(one.values) > 1)


def _all(site: Site, slurm: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> Iterator[Choice]:
    node, partition = site.node, site.partition(slurm["partition"])
    stated = partition.max_minutes if partition else 0
    longest = stated or minutes_of(slurm["time"])
    giver = f"{partition.name} of {site.name}" if partition and stated else "this hub"
    for scale, most, whose in (
        (_GPUS, node.gpus, f"a node of {site.name} has"),
        (_CORES, node.cpus, f"a node of {site.name} has"),
        (_MEMORY, node.memory_gib * 1024, f"a node of {site.name} has"),
        (_TIME, longest, f"{giver} gives at most"),
    ):
        limit = f"{whose} {scale.write(most)}"
        yield scale.choice(most, limit, str(slurm[scale.setting]), lists.get(scale.name, ()))


@dataclass(frozen=True)
class _Scale:
    """How one thing is counted. read and write: between numbers and sbatch's words; least: the smallest
    that is offered when the operator does not say, and 0 before it where none is enough too.
    """

    name: str
    label: str
    setting: str
    least: int
    zero: bool
    read: Callable[[str], int]
    write: Callable[[int], str]

    def choice(self, most: int, limit: str, default: str, own: Sequence[Any]) -> Choice:
        """What is offered up to `most`; one value, the default, where the site does not say how much there is
        or the default is Slurm's own.
        """
        if not most or not (own or default):
            return Choice(self.name, self.label, self.setting, (default,), default, limit)
        usual = self.read(default) if default else self.read(str(own[0]))
        numbers = {self.read(str(value)) for value in own} or {*self._doublings(most), usual}
        if usual not in numbers:
            raise ValueError(f"slurm.{self.setting}: {default} is not among the choices.{self.name}")
        if min(numbers) < 1 and not self.zero:
            raise ValueError(f"{self.name}: {self.write(min(numbers))} is too little")
        if max(numbers) > most:
            raise ValueError(f"{self.name}: {self.write(max(numbers))} is too much: {limit}")
        values = tuple(self.write(number) for number in sorted(numbers))
        return Choice(self.name, self.label, self.setting, values, self.write(usual), limit)

    def _doublings(self, most: int) -> set[int]:
        found, number = {most, *([0] if self.zero else [])}, self.least
        while number < most:
            found.add(number)
            number *= 2
        return found


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number and found {text!r}")
    return int(text)


_GPUS = _Scale("gpus", "GPUs of each node", "gpus-per-node", 1, True, _count, str)
_CORES = _Scale("cpus", "Cores of each node", "cpus", _LEAST_CORES, False, _count, str)
_MEMORY = _Scale("mem", "Memory of each node", "mem", _LEAST_MIB, False, mib_of, slurm_memory)
_TIME = _Scale(
    "time", "Time (days-hours:minutes:seconds)", "time", _LEAST_MINUTES, False, minutes_of, slurm_time
)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
