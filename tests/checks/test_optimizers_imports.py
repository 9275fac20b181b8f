"""What is imported before a trainer is weighed: only what the notebook's functions may need."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from types import ModuleType

from labkit.checks.lesson_09.imports import import_what_optimizers_need
from labkit.checks.source.submission import MODULE_NAME

module = ModuleType(MODULE_NAME)
sys.modules[MODULE_NAME] = module
exec({code!r}, vars(module))
import_what_optimizers_need()
print("torch._dynamo" in sys.modules)
"""
IN_A_METHOD = """
import torch
class Trainer:
    def __init__(self, parameters):
        def made():
            return torch.optim.SGD(parameters, lr=0.1)
        self.optimizer = made()
"""
BY_NAME = """
from torch.optim import AdamW
def train(parameters): return AdamW(parameters)
"""
WRITTEN_OUT = """
import torch
class Trainer:
    def step(self, p): p.sub_(0.1 * p.grad)
"""


@pytest.mark.days
@pytest.mark.parametrize(("code", "imports"), [(IN_A_METHOD, True), (BY_NAME, True), (WRITTEN_OUT, False)])
def test_the_compiler_is_imported_beforehand_where_an_optimizer_may_be_made(code: str, imports: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [str(imports)], done.stderr
