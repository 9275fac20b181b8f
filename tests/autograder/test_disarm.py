"""What an exercise forbids is gone from a rank, whatever it is called and however it is brought back."""

from __future__ import annotations

import json
import subprocess
import sys

NAMES = (
    *("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.CheckpointFunction"),
    *("torch.nn.utils.clip_grad_norm_", "torch.distributed.all_reduce", "torch.not_there"),
)
WAYS = (
    "other_name(print, 1)",
    "wrapped([torch.ones(1)], 1.0)",
    "torch.utils.checkpoint.CheckpointFunction.forward(None, print, True)",
    "exec(code)",
    "types.FunctionType(code, {})",
    "code.replace(co_name='mine')",
    "types.FunctionType(method.__code__, method.__globals__)(None, 1)",
    "torch.utils.checkpoint.__loader__.exec_module(types.ModuleType('torch.utils.checkpoint'))",
    "exec(torch.utils.checkpoint.__loader__.get_code('torch.utils.checkpoint'), {})",
    "torch.ops._c10d_functional.all_reduce(torch.ones(1), 'sum', '0')",
    "torch.ops._c10d_functional.all_reduce.default(torch.ones(1), 'sum', '0')",
    "dist.ProcessGroup.allreduce(None, [torch.ones(1)])",
    "del sys.modules['torch.utils.checkpoint']; import torch.utils.checkpoint",
)
STILL_THERE = (
    "torch.ones(2).mean()",
    "dist.ProcessGroup.send",
    "eval('1 + 1')",
    "torch.ops.aten.add(torch.ones(1), 1)",
)
TRIAL = """
import json, sys, types
import torch, torch.utils.checkpoint, torch.nn.utils, torch.distributed as dist
other_name = torch.utils.checkpoint.checkpoint
method = torch.utils.checkpoint.CheckpointFunction.backward
code, wrapped = method.__code__, torch.nn.utils.clip_grad_norm_
from autograder.sandbox.within.disarm import disarm
from labkit.checks.forbidden import ForbiddenCall

def came_of(way):
    try:
        exec(way, globals())
    except Exception as error:
        return type(error).__name__
    return "done"

names, ways = json.loads(sys.argv[1])
disarm(names)
print(json.dumps([came_of(way) for way in ways]))
"""


def test_it_is_refused_in_every_way_and_all_else_works() -> None:
    """In a process of its own: nothing is ever put back."""
    told = json.dumps([NAMES, WAYS + STILL_THERE])
    done = subprocess.run([sys.executable, "-c", TRIAL, told], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    came_of = dict(zip(WAYS + STILL_THERE, json.loads(done.stdout), strict=True))
    assert {way for way in WAYS if came_of[way] != "ForbiddenCall"} == set()
    assert {way: came_of[way] for way in STILL_THERE} == dict.fromkeys(STILL_THERE, "done")
