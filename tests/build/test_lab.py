"""`labkit lab`: what it prints can be pasted and works, on a desktop and on a compute node."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client import BlockingKernelClient

from labkit import processes
from labkit.jupyter import lab as module
from labkit.jupyter.lab import (
    CannotStart,
    announcement,
    command,
    free_port,
    has_screen,
    host_in_url,
    run,
    tunnel,
)

pytestmark = pytest.mark.days()

HOST = "n07"
SLURM = {"SLURM_JOB_ID": "5", "SLURM_SUBMIT_HOST": "login1", "USER": "ada", "SSH_CONNECTION": "there"}


@pytest.mark.parametrize(
    ("ip", "environment", "expected"),
    [
        ("127.0.0.1", {"SSH_CONNECTION": "there", "USER": "ada"}, "ssh -N -L 8888:127.0.0.1:8888 ada@n07"),
        ("127.0.0.1", SLURM, "ssh -N -L 8888:127.0.0.1:8888 -J ada@login1 ada@n07"),
        ("0.0.0.0", SLURM, "ssh -N -L 8888:n07:8888 ada@login1"),
        ("10.0.0.7", {"SSH_CONNECTION": "there", "USER": "ada"}, "ssh -N -L 8888:10.0.0.7:8888 ada@n07"),
        ("10.0.0.7", SLURM, "ssh -N -L 8888:10.0.0.7:8888 ada@login1"),
        ("localhost", SLURM, "ssh -N -L 8888:127.0.0.1:8888 -J ada@login1 ada@n07"),
        ("::1", SLURM, "ssh -N -L 8888:[::1]:8888 -J ada@login1 ada@n07"),
    ],
)
def test_the_tunnel_ends_where_jupyter_listens(ip: str, environment: dict[str, str], expected: str) -> None:
    assert tunnel(ip, 8888, environment, HOST) == expected
    told = announcement(ip, 8888, "secret", Path("notebooks"), environment, HOST)
    assert expected in told
    assert "http://127.0.0.1:8888/lab?token=secret" in told


def test_a_desktop_gets_a_url_and_no_tunnel() -> None:
    told = announcement("127.0.0.1", 8888, "secret", Path("notebooks"), {"DISPLAY": ":0"}, HOST)
    assert "http://127.0.0.1:8888/lab?token=secret" in told
    assert "ssh" not in told


def test_a_browser_is_opened_only_where_it_is_seen() -> None:
    assert has_screen({"DISPLAY": ":0"})
    assert not has_screen({"DISPLAY": ":0", "SSH_CONNECTION": "there"})
    assert sys.platform == "darwin" or not has_screen({})


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) > port
        assert free_port("127.0.0.1", port + 1) > port


@pytest.mark.parametrize("ip", ["*", "", "0.0.0.0"])
def test_a_port_on_all_addresses(ip: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port(ip, port) <= port + 100


def test_nbgrader_is_left_on_in_a_course(tmp_path: Path) -> None:
    assert "formgrader" in " ".join(command("127.0.0.1", 8888, tmp_path, False))
    (tmp_path / "nbgrader_config.py").touch()
    assert "formgrader" not in " ".join(command("127.0.0.1", 8888, tmp_path, False))


@pytest.mark.parametrize(
    ("ip", "host"), [("0.0.0.0", "127.0.0.1"), ("10.0.0.7", "10.0.0.7"), ("::1", "[::1]")]
)
def test_an_address_in_a_url(ip: str, host: str) -> None:
    assert host_in_url(ip) == host


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="ROOT="):
        run(port=8888, root=tmp_path / "none")


@pytest.mark.parametrize("ip", ["192.0.2.1", "no address"])
def test_no_address(ip: str) -> None:
    """The first is for documentation, and no host has it; the second is none. Another port is no remedy."""
    with pytest.raises(CannotStart, match=f"^{ip} cannot be listened on: .*--ip takes an address") as told:
        free_port(ip, 8888)
    assert "--port" not in str(told.value)


def test_no_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 65535))
        with pytest.raises(CannotStart, match="ports 65535 to 65535 on"):
            free_port("127.0.0.1", 65535)


def test_the_token_is_not_on_the_command_line() -> None:
    assert "token" not in " ".join(command("127.0.0.1", 8888, Path(), False))


def test_a_server_that_does_not_answer_is_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a minute, here every 0.3 s, until it ends."""
    monkeypatch.setattr(module, "_SAY_EVERY", 0.3)
    url = f"http://127.0.0.1:{free_port('127.0.0.1', 18700)}/api/status"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.2)"]) as server:
        assert not module._wait_until_up(server, url, "secret")
    told = capsys.readouterr().err.splitlines()
    assert len(told) >= 2
    assert all(f"process {server.pid}) has not answered" in line and url in line for line in told)
    assert "refused" in told[0]
    assert "secret" not in "".join(told)


@pytest.mark.parametrize("token", ["secret", "gödel → 7", "two\nlines"])
def test_what_is_no_web_server_is_not_up(token: str) -> None:
    """Somebody else's program on the port, whatever the token is that somebody has set."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, heard = other.getsockname()[1], []

        def answer() -> None:
            with contextlib.suppress(OSError):  # it is closed at the end
                while True:
                    with other.accept()[0] as one:
                        heard.append(one.recv(4096))
                        one.sendall(b"SSH-2.0-other\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"]) as server:
            assert not module._wait_until_up(server, f"http://127.0.0.1:{port}/api/status", token)
    assert len(heard) > 1


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("No username set")])
def test_a_user_without_a_name_is_told_the_rest(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """In a container that knows only numbers; Python 3.13 says it by another error."""

    def nobody() -> str:
        raise error

    monkeypatch.setattr(module.getpass, "getuser", nobody)
    expected = "ssh -N -L 8888:127.0.0.1:8888 YOUR-NAME@n07"
    assert tunnel("127.0.0.1", 8888, {"SSH_CONNECTION": "there"}, HOST) == expected


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """`labkit lab`, by a command that runs it in its own place."""
    root = tmp_path / "my lessons"
    root.mkdir()
    (root / "hello.ipynb").write_text("{}")
    environment = {**os.environ, "HOME": str(tmp_path), "SSH_CONNECTION": "there"}
    words = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(root), "--port", "18888"]
    with subprocess.Popen(
        [*getattr(request, "param", ["env", "--default-signal=HUP"]), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()


def _printed_url(lab: subprocess.Popen[str]) -> str:
    """The address, once JupyterLab is there."""
    assert lab.stdout is not None
    lines = []
    for line in lab.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    return next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_the_printed_url_works_and_one_signal_ends_everything(
    lab: subprocess.Popen[str], number: signal.Signals
) -> None:
    url = _printed_url(lab)
    children = psutil.Process(lab.pid).children(recursive=True)
    folder = Path(children[0].environ()["JUPYTER_RUNTIME_DIR"])
    with urllib.request.urlopen(url.replace("/lab?", "/api/contents?"), timeout=30) as answer:
        assert b"hello.ipynb" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("/lab?token=", "/api/contents?token=x"), timeout=30)
    with pytest.raises(urllib.error.HTTPError, match="404"):  # no course, so none of nbgrader's pages
        urllib.request.urlopen(url.replace("/lab?", "/formgrader?"), timeout=30)
    lab.send_signal(number)
    assert lab.wait(30) == (-9 if number == signal.SIGKILL else 0)
    _, left = psutil.wait_procs(children, timeout=15)
    assert left == []
    assert folder.exists() == (number == signal.SIGKILL)
    with module._private_folder():  # which the next `labkit lab` does
        assert not folder.exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lab", [["env", "JUPYTER_TOKEN=2+2/4=&1 #→"]], indirect=True)
def test_a_token_that_somebody_has_set_opens_the_printed_url(lab: subprocess.Popen[str]) -> None:
    url = _printed_url(lab)
    with urllib.request.urlopen(url.replace("/lab?", "/api/contents?"), timeout=30) as answer:
        assert b"hello.ipynb" in answer.read()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lab", [["nohup"]], indirect=True)
def test_nohup_has_it_outlive_the_terminal(lab: subprocess.Popen[str]) -> None:
    url = _printed_url(lab)
    lab.send_signal(signal.SIGHUP)
    lab.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        lab.wait(3)
    with urllib.request.urlopen(url.replace("/lab?", "/api/contents?"), timeout=30) as answer:
        assert b"hello.ipynb" in answer.read()


@pytest.mark.timeout(30)
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to make something that is another user's")
def test_what_another_user_put_in_tmp_holds_nobody_up() -> None:
    folder = Path(f"/tmp/labkit-lab-{os.getuid()}-stranger-{os.getpid()}")
    folder.mkdir()
    os.mkfifo(folder / "lock")
    os.chown(folder, 65534, 65534)
    try:
        with module._private_folder() as own:
            assert own.is_dir()
        assert folder.is_dir()
    finally:
        shutil.rmtree(folder)


def test_a_folder_in_use_stays() -> None:
    with module._private_folder() as one, module._private_folder() as other:
        assert one.is_dir()
        assert one != other
    assert not one.exists()


JOB = """
import labkit, rank_functions
from labkit.launch import client
job = labkit.launch(rank_functions.sleeps, ranks=2, wait=False)
while not all("ready" in text for text in job.output):
    job.poll(0.01)
print(client.engine().directory)
"""


def _connection_file(lab: subprocess.Popen[str]) -> str:
    """Of the one kernel that runs, as its command line tells once it has started."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for child in psutil.Process(lab.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found = [word for word in child.cmdline() if re.search(r"kernel-[^/]*\.json$", word)]
                if found:
                    return found[0]
        time.sleep(0.05)
    raise TimeoutError("no kernel was started")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_closing_jupyterlab_ends_the_jobs_of_its_notebooks(
    lab: subprocess.Popen[str], number: signal.Signals
) -> None:
    url = _printed_url(lab)
    asked = urllib.request.Request(url.replace("/lab?", "/api/kernels?"), data=b"{}", method="POST")
    urllib.request.urlopen(asked, timeout=30).close()
    client = BlockingKernelClient(connection_file=_connection_file(lab))
    client.load_connection_file()
    client.hb_channel.time_to_dead = 30.0  # a kernel that starts on a busy machine is not dead after a second
    client.start_channels()
    client.wait_for_ready(timeout=60)
    said: list[str] = []
    functions = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'launch')!r})"
    client.execute_interactive(
        functions + JOB,
        timeout=60,
        output_hook=lambda message: said.append(str(message["content"].get("text"))),
    )
    client.stop_channels()
    directory = next(found[0] for text in said if (found := re.search(r"/\S+", text)))
    assert len(processes.marked(directory)) == 1 + 3  # the engine; an agent with two ranks
    lab.send_signal(number)
    lab.wait(30)
    until = time.monotonic() + 15
    while (processes.marked(directory) or Path(directory).exists()) and time.monotonic() < until:
        time.sleep(0.1)
    assert (processes.marked(directory), Path(directory).exists()) == ([], False)


@pytest.mark.timeout(120)
def test_two_who_start_at_once_get_a_port_each(tmp_path: Path) -> None:
    """Both find the port free; one of the two servers comes too late for it."""
    (tmp_path / "lessons").mkdir()
    words = [
        sys.executable,
        "-m",
        "labkit.cli",
        "lab",
        "--root",
        str(tmp_path / "lessons"),
        "--port",
        "18988",
    ]
    environment = {**os.environ, "HOME": str(tmp_path), "SSH_CONNECTION": "there"}
    both = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    try:
        assert len({re.search(r":(\d+)/lab", _printed_url(lab))[1] for lab in both}) == 2
    finally:
        for lab in both:
            lab.terminate()
            lab.communicate(timeout=30)
