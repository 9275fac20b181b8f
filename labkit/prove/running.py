"""Runs parts, one after the other, and writes the report anew after each: an interrupt loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from labkit.hosts import gpu_count, usable
from labkit.processes import die_with_parent
from labkit.prove.part import Part
from labkit.prove.report import Proof, write
from labkit.prove.result import Result, read_results

Told = Callable[[str], None]
Found = Callable[[Sequence[Result]], None]
NO_GPU = "this host has no GPU (or CUDA_VISIBLE_DEVICES hides it)"
_SECONDS_TO_END = 10.0  # between the interrupt that a part gets at its deadline and its kill
_SECONDS_BETWEEN_LOOKS = 0.2  # at what a part has found


class UnknownPart(LookupError):
    """No part has that name."""


def chosen(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts of these names, all when none is given. UnknownPart tells the names there are."""
    known = {part.name: part for part in parts}
    if unknown := [name for name in names if name not in known]:
        raise UnknownPart(f"expected one of {', '.join(known)}; found {', '.join(unknown)}")
    return [part for part in parts if not names or part.name in names]


def prove(parts: Sequence[Part], directory: Path, told: Told) -> Proof:
    """Run the parts and write directory/report.md and report.json, again after each part.

    told: called with each line of progress. A KeyboardInterrupt ends the part that runs, with all it started,
    and is raised again after the report has been written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    proof = Proof.begun()
    try:
        for number, part in enumerate(parts, 1):
            told(f"[{number}/{len(parts)}] {part.name}: {part.asks}")
            _run(part, directory, proof, told)
            write(proof, directory)
    except KeyboardInterrupt:
        proof.interrupted = True
        raise
    finally:
        write(proof, directory)
    return proof


def _run(part: Part, directory: Path, proof: Proof, told: Told) -> None:
    began, before = time.monotonic(), len(proof.results)

    def found(results: Sequence[Result]) -> None:
        """Keep and tell those that are new."""
        for result in results:
            proof.results.append(result)
            told(f"    {result.state:9} {result.name}: {result.says}")

    gpus, notes = usable(gpu_count())
    if part.gpu and not gpus:
        found([Result(part.name, "all", "skipped", notes[0] if notes else NO_GPU)])
    else:
        log = directory / f"{part.name}.log"
        found(_child(part, log, found))
        if len(proof.results) == before:
            found([Result(part.name, "all", "failed", f"it ended without a result; see {log}")])
    proof.seconds[part.name] = time.monotonic() - began


def _child(part: Part, log: Path, found: Found) -> list[Result]:
    """Run a part's process to its end, with what it finds handed to `found` as it comes; what is to be said
    about the end, if it was not an ordinary one.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-prove-") as folder, log.open("w") as output:
        path, known, deadline = Path(folder, "results"), 0, time.monotonic() + part.seconds
        process = subprocess.Popen(
            [*part.command, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()) if sys.platform == "linux" else None,
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                found(new := read_results(path)[known:])
                known += len(new)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            code = process.poll()
        finally:
            _end(process)
            found(read_results(path)[known:])
    if code is None:
        says = f"not finished after {part.seconds:g} s and ended; see {log}"
        return [Result(part.name, "deadline", "failed", says)]
    if code == 0:
        return []
    last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-2:])[-300:]
    return [Result(part.name, "exit", "failed", f"status {code}: {last or 'nothing printed'}")]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all it started: first as Ctrl-C would, so that it can tidy up."""
    for number, patience in ((signal.SIGINT, _SECONDS_TO_END), (signal.SIGKILL, _SECONDS_TO_END)):
        if process.poll() is None:
            _signal(process.pid, number)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
    _signal(process.pid, signal.SIGKILL)  # what is left of its session's group


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # macOS says so of a group of zombies
        print(f"could not end process group {group}", file=sys.stderr)
