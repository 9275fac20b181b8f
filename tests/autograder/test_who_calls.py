"""Who asks whether somebody is looking is shown to a person; who warns, logs or prints is not."""

from __future__ import annotations

import pytest
from conftest import F_ID

from autograder.grade.scan import Flag, scan
from labkit.checks.source.submission import Cell, collect

READS_THE_STACK = [
    "import logging\ndef f(x): logging.warning('x', stack_info=True)",
    "import logging\ndef f(x, how): logging.warning('x', stack_info=how)",
    "import logging\ndef f(x): logging.warning('x', **{'stack_info': True})",
    "import logging\ndef f(x): return logging.getLogger('x').findCaller(True)",
    "import torch\ndef f(x): torch.autograd.set_detect_anomaly(True)",
    "from torch.autograd import detect_anomaly\ndef f(x): return detect_anomaly()",
    "import torch\ndef f(x): return torch.profiler.profile(with_stack=True)",
]
LOOKS = [
    ("import warnings\ndef f(x): warnings.warn('x', stacklevel=3)", "who calls it, by stacklevel"),
    ("import warnings\ndef f(x): warnings.warn('x', None, 4)", "who calls it, by stacklevel"),
    ("import warnings\ndef f(x): warnings.warn('x', skip_file_prefixes=x)", "by skip_file_prefixes"),
    ("import warnings\ndef f(x): return warnings.catch_warnings(record=True)", "where a warning comes from"),
    ("import warnings\ndef f(x): warnings.showwarning = x", "where a warning comes from"),
    ("def f(work): return 'counted' in repr(work.wait)", "looks at what wait is"),
    ("def f(x): return f'{x.tolist}'", "looks at what tolist is"),
    ("def f(x): return x.tolist.__qualname__", "looks at what tolist is"),
    ("def f(x): return type(x.item)", "looks at what item is"),
    ("def f(x, y): return x.tolist == y", "looks at what tolist is"),
]
SAYS_IT = [
    "import warnings\ndef f(x): warnings.warn('x')",
    "import warnings\ndef f(x): warnings.warn('x', UserWarning, 1)",
    "import warnings\ndef f(x): warnings.simplefilter('ignore')",
    "import logging\ndef f(x): logging.getLogger('f').warning('x', stack_info=False)",
    "def f(x): return f'{x.tolist()} of {type(x).__name__}'",
    "def f(x): return repr(x.item()) == str(x.shape)",
    "def f(work): return work.wait() == work.is_completed()",
]


def _flags(text: str) -> list[Flag]:
    return scan(collect([Cell("cell 4", text)], F_ID, ["f"]))


@pytest.mark.parametrize("text", READS_THE_STACK)
def test_who_reads_the_stack_waits_for_a_person(text: str) -> None:
    found = [flag for flag in _flags(text) if "reads who calls it" in flag.why]
    assert found
    assert all(flag.holds_all for flag in found)


@pytest.mark.parametrize(("text", "told"), LOOKS)
def test_who_looks_whether_he_is_seen_is_shown(text: str, told: str) -> None:
    assert any(told in flag.why for flag in _flags(text))


@pytest.mark.parametrize("text", SAYS_IT)
def test_who_says_something_is_not(text: str) -> None:
    assert not _flags(text)
