"""What an exercise forbids is gone from a rank, whatever it is called and however it is brought back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NAMES = (
    *("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.CheckpointFunction"),
    *("torch.nn.utils.clip_grad_norm_", "torch.distributed.all_reduce", "torch.not_there"),
    "torch.distributed.fsdp.FullyShardedDataParallel",  # a method of it is decorated with torch.no_grad()
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
    "mine.__code__ = code",
    "mine.__code__ = marshal.loads(marshal.dumps(code))",
    "exec(marshal.loads(marshal.dumps(code)))",
    "pickle.loads(pickle.dumps(torch.utils.checkpoint.checkpoint))(print, 1)",
    "copy.deepcopy(torch.utils.checkpoint.checkpoint)(print, 1)",
    "functools.partial(other_name, print)(1)",
    "operator.methodcaller('forward', None, print, True)(torch.utils.checkpoint.CheckpointFunction)",
    "torch._dynamo.disable(other_name)(print, 1)",
    "dist.all_reduce(torch.ones(1))",
    "dist.distributed_c10d.all_reduce(torch.ones(1))",
    "dist.all_reduce.__wrapped__(torch.ones(1))",
    "dist.nn.functional.all_reduce(torch.ones(1))",
    "functional.all_reduce(torch.ones(1), 'sum', group)",
    "group.allreduce([torch.ones(1)])",
    "group._get_backend(torch.device('cpu')).allreduce([torch.ones(1)])",
    "torch.ops._c10d_functional.all_reduce(torch.ones(1), 'sum', name)",
    "torch.ops._c10d_functional.all_reduce.default(torch.ones(1), 'sum', name)",
    "torch.ops._c10d_functional.all_reduce_coalesced([torch.ones(1)], 'sum', name)",
    "torch.ops._c10d_functional.all_reduce._op(torch.ones(1), 'sum', name)",
    "torch._C._jit_get_operation('_c10d_functional::all_reduce')[0](torch.ones(1), 'sum', name)",
    "torch._C._get_operation_overload('_c10d_functional::all_reduce', '')[0](torch.ones(1), 'sum', name)",
    "torch.ops._c10d_functional.all_reduce.default.redispatch(on_cpu, torch.ones(1), 'sum', name)",
    "ddp = torch.nn.parallel.DistributedDataParallel(layer); ddp(torch.ones(1)).sum().backward()",
    "dist.ProcessGroup.allreduce(None, [torch.ones(1)])",
    "del sys.modules['torch.utils.checkpoint']; import torch.utils.checkpoint",
)
IN_OTHER_WORDS = "torch.jit.CompilationUnit(SCRIPT).reduced(torch.ones(1))"  # TorchScript's own error
STILL_THERE = (
    "dist.barrier()",
    "dist.broadcast(torch.ones(1), 0)",
    "mine.__code__ = (lambda: 1).__code__",
    "own = torch.no_grad()(mine); own.__code__ = own.__code__.replace(co_name='own'); own()",  # as torch 2.15
    "torch.ones(2).mean()",
    "dist.ProcessGroup.send",
    "eval('1 + 1')",
    "torch.ops.aten.add(torch.ones(1), 1)",
)
TRIAL = """
import copy, functools, json, marshal, operator, pickle, sys, tempfile, types
import torch, torch.utils.checkpoint, torch.nn.utils, torch.distributed as dist
import torch.distributed._functional_collectives as functional, torch.distributed.nn.functional
import torch.distributed.fsdp
store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
group, name = dist.group.WORLD, dist.group.WORLD.group_name
on_cpu, layer = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), torch.nn.Linear(1, 1)
SCRIPT = f"def reduced(x):\\n    return torch.ops._c10d_functional.all_reduce(x, 'sum', '{name}')"

def mine():
    pass

other_name = torch.utils.checkpoint.checkpoint
method = torch.utils.checkpoint.CheckpointFunction.backward
code, wrapped = method.__code__, torch.nn.utils.clip_grad_norm_
from labkit.checks.disarm import disarm
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


@pytest.mark.days
def test_it_is_refused_in_every_way_and_all_else_works() -> None:
    """In a process of its own: nothing is ever put back."""
    told = json.dumps([NAMES, (*WAYS, IN_OTHER_WORDS, *STILL_THERE)])
    done = subprocess.run([sys.executable, "-c", TRIAL, told], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]  # gloo of torch 2.8 says there that it is connected
    came_of = dict(zip((*WAYS, IN_OTHER_WORDS, *STILL_THERE), json.loads(said), strict=True))
    assert {way: came_of[way] for way in WAYS if came_of[way] != "ForbiddenCall"} == {}
    assert came_of[IN_OTHER_WORDS] == "RuntimeError"
    assert {way: came_of[way] for way in STILL_THERE} == dict.fromkeys(STILL_THERE, "done")
