"""Python, torch and its backends, the packages that not everyone installs, and a browser."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
from typing import Any

from labkit.doctor.finding import GIB, Finding, output_of
from labkit.hosts import CUDA_TORCH, wrong_system

TESTED_TORCH = "2.13"  # what constraints.txt pins
OLDEST_TORCH = (2, 8)  # 2.6 has no reduce_scatter on gloo
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def probe_python() -> list[Finding]:
    """Which Python runs, and on what."""
    python = Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    problem = wrong_system()
    named = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return [python, Finding("system", "failed" if problem else "ok", problem or named)]


_ASK_TORCH = """
import json, torch, torch.distributed as dist
gpus = []
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        gpus.append([about.name, about.total_memory])
backends = [name for name in ("gloo", "nccl", "mpi", "ucc")
            if dist.is_available() and getattr(dist, f"is_{name}_available", lambda: False)()]
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus, "backends": backends}))
"""


def probe_torch() -> list[Finding]:
    """The torch that is installed, the devices it sees, and the backends it has."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [Finding("torch", "failed", "not installed", "make env")]
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST_TORCH:
        least = ".".join(map(str, OLDEST_TORCH))
        return [Finding("torch", "failed", f"{version}; the course needs {least} or newer", "make env")]
    tested = f"{release[0]}.{release[1]}" == TESTED_TORCH
    remark = "the tested release" if tested else f"not the tested release, which is {TESTED_TORCH}"
    about = ask_torch()
    if "problem" in about:
        return [Finding("torch", "failed", f"{version} does not import: {about['problem']}", "make env")]
    return [
        Finding(
            "torch",
            "ok" if tested else "note",
            f"{version}, {remark}; CUDA {about['cuda'] or 'not built in'}",
        ),
        _devices(about["gpus"]),
        _backends(about["backends"], bool(about["gpus"])),
    ]


def ask_torch() -> dict[str, Any]:
    """{"cuda", "gpus": [[name, bytes]], "backends"} as torch tells it in a child, or {"problem"}."""
    status, answer = output_of(sys.executable, "-c", _ASK_TORCH, seconds=60)
    try:
        about: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        return {"problem": f"exit {status}: {answer[-300:]}"}
    return about


def _devices(gpus: list[tuple[str, int]]) -> Finding:
    if gpus:
        named = ", ".join(f"{name} ({memory / GIB:.0f} GiB)" for name, memory in gpus)
        return Finding("devices", "ok", f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}, one rank each: {named}")
    if shutil.which("nvidia-smi") and output_of("nvidia-smi", "-L")[0] == 0:
        return Finding("devices", "note", "there is an NVIDIA driver, but this torch sees no GPU", CUDA_TORCH)
    return Finding("devices", "ok", "no GPU: ranks run on the CPU, which every lesson can")


def _backends(backends: list[str], gpus: bool) -> Finding:
    listed = ", ".join(backends) or "none"
    if "gloo" not in backends:
        return Finding("backends", "failed", f"{listed}; ranks on the CPU need gloo", "make env")
    if gpus and "nccl" not in backends:
        return Finding("backends", "note", f"{listed}; ranks on GPUs need NCCL, so they run on the CPU")
    return Finding("backends", "ok", listed)


def probe_packages() -> list[Finding]:
    """The parts of the course that not everyone installs."""
    parts = (
        ("JupyterLab", ("jupyterlab",), "make lab"),
        ("grading", ("nbgrader", "jupytext", "nbclient"), "make env"),
    )
    found = []
    for topic, modules, fix in parts:
        lacking = [name for name in modules if importlib.util.find_spec(name) is None]
        if lacking:
            found.append(Finding(topic, "missing", f"not installed: {', '.join(lacking)}", fix))
        else:
            versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in modules)
            found.append(Finding(topic, "ok", versions))
    return found


def find_browser() -> str | None:
    """A Chromium the browser tests can drive, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def probe_browser() -> list[Finding]:
    """Whether Chromium is there, for the tests that look at lessons."""
    path = find_browser()
    if path is None:
        says = "no Chromium; only the tests that look at the lessons need one"
        return [Finding("browser", "missing", says, "apt-get install chromium")]
    status, answer = output_of(path, "--version")
    version = answer.splitlines()[-1] if answer else f"exit {status}"
    return [Finding("browser", "ok" if status == 0 else "note", f"{path}: {version}")]
