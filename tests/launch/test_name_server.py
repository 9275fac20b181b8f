"""No launch and no session asks a name server: one that does not answer would cost seconds."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.days(), pytest.mark.timeout(120)]

# In a network with nothing but a loopback, where the name server of this process never answers.
PROGRAM = """
import contextlib, socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
server.setblocking(False)

def questions():
    found = []
    try:
        while True:
            found.append(server.recv(4096))
    except BlockingIOError:
        return found

import labkit, torch
import torch.distributed as dist

def job():
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.new_group([0, 1])
    return x.tolist()

print(labkit.launch(job, ranks=4).results[0])
with labkit.session(ranks=2) as session:
    print(session.call(job)[1])
print("questions:", len(questions()))
with contextlib.suppress(OSError):
    socket.getnameinfo(("127.0.0.1", 1), socket.NI_NUMERICSERV)
print("heard when asked:", len(questions()) > 0)
"""
IN_ITS_OWN_NETWORK = """
ip link set lo up
mount --bind {resolver} /etc/resolv.conf
mount --bind {nobody} /etc/hosts
exec {python} {program}
"""


@pytest.mark.parametrize("resolver", ["nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", ""])
def test_no_question_reaches_a_name_server(tmp_path: Path, resolver: str) -> None:
    """One that answers nothing, and none at all: without a line in its file the system asks 127.0.0.1."""
    if subprocess.run(["unshare", "-rmn", "true"], capture_output=True).returncode:
        pytest.skip("needs namespaces of its own")
    files = {name: tmp_path / name for name in ("resolver", "nobody", "program")}
    files["resolver"].write_text(resolver)
    files["nobody"].write_text("")
    files["program"].write_text(PROGRAM)
    script = IN_ITS_OWN_NETWORK.format(python=shlex.quote(sys.executable), **files)
    done = subprocess.run(
        ["unshare", "-rmn", "sh", "-ec", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == [
        "[4.0, 4.0]",
        "[2.0, 2.0]",
        "questions: 0",
        "heard when asked: True",
    ], done.stderr
