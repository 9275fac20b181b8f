"""Starts JupyterLab on the lessons and says where to find it, also from a node that has no screen."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from labkit.processes import die_with_parent, ending_signals_do

_PORTS_TRIED, _PORTS_EACH = 50, 10
_SAY_EVERY = 60.0  # seconds without an answer after which whoever waits is told, and told again
_LOCK = "lock"
_ANY, _LOOPBACK = ("0.0.0.0", "::", "", "*"), ("127.0.0.1", "::1", "localhost")  # to listen on
_NBGRADER_SERVER = [
    f"nbgrader.server_extensions.{part}"
    for part in ("formgrader", "validate_assignment", "assignment_list", "course_list")
]


class CannotStart(Exception):
    """JupyterLab cannot be started, and why."""


def run(
    *,
    port: int,
    root: Path,
    ip: str = "127.0.0.1",
    browser: bool | None = None,
    idle: float = 0,
    base: str = "/",
    tell: Callable[[int, str], None] | None = None,
) -> int:
    """Run JupyterLab until it ends, or until Ctrl-C. Returns its exit status.

    port: the first one tried; a taken one is passed over.  root: the folder shown.
    browser: whether to open one; None means only where there is a screen.
    idle: minutes without use after which it ends by itself; 0 for never.
    base: the path of its pages, with slashes around; "{port}" in it stands for its port.
    tell: called with port and token when it is up, instead of printing where it is.
    Raises CannotStart when JupyterLab, the folder or a free port is not there.
    """
    if find_spec("jupyterlab") is None:
        raise CannotStart("JupyterLab is not installed here; run `make lab`, or `pip install jupyterlab`")
    if not root.is_dir():
        raise CannotStart(f"no folder {root}; give one that exists with ROOT= or --root")
    token = os.environ.get("JUPYTER_TOKEN") or secrets.token_hex(16)
    open_browser = has_screen(os.environ) if browser is None else browser

    def say(port: int) -> None:
        if tell is not None:
            tell(port, token)
        else:
            print(announcement(ip, port, token, root, os.environ, socket.gethostname()), flush=True)

    with _private_folder() as private:
        write_lab_config(private, root)
        while True:
            port = free_port(ip, port)
            path = base.format(port=port)
            words = [*command(ip, port, root, open_browser), *idle_options(idle), *path_options(path, port)]
            up = f"http://{host_in_url(ip)}:{port}{path}api/status"
            came_up, status = _serve(words, up, _environment(token, private), root, partial(say, port))
            if came_up or free_port(ip, port) == port:
                return status  # otherwise somebody took the port between our look and JupyterLab's


def _serve(
    words: list[str], up: str, environment: dict[str, str], root: Path, say: Callable[[], None]
) -> tuple[bool, int]:
    """Run the server to its end: whether it ever answered at the URL `up`, and its exit status."""
    server = subprocess.Popen(
        words,
        env=environment,
        cwd=root,
        preexec_fn=partial(die_with_parent, os.getpid()) if sys.platform == "linux" else None,
    )
    try:
        # A signal that would end us ends the server, and we go on to report its status.
        with ending_signals_do(lambda *_: server.terminate()):
            if not _wait_until_up(server, up, environment["JUPYTER_TOKEN"]):
                return False, server.wait()
            say()
            return True, server.wait()
    finally:
        _stop(server)


def command(ip: str, port: int, root: Path, open_browser: bool) -> list[str]:
    """JupyterLab's command line. The token travels in the environment, which other users cannot read."""
    options = [
        f"--ServerApp.ip={ip}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",  # the URL we print must be the one it has
        f"--ServerApp.root_dir={root.resolve()}",
        f"--ServerApp.open_browser={open_browser}",
        "--ServerApp.answer_yes=True",  # one Ctrl-C ends it
        "--KernelManager.transport=ipc",  # a TCP port of a shared node can be reached by all who are on it
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--Application.log_level=ERROR",
    ]
    if not is_course(root):
        options.append(f"--ServerApp.jpserver_extensions={dict.fromkeys(_NBGRADER_SERVER, False)}")
    if os.geteuid() == 0:  # Jupyter refuses to run as root, which containers do
        options.append("--allow-root")
    return [sys.executable, "-m", "jupyterlab", *options]


def path_options(path: str, port: int) -> list[str]:
    """For pages below another Jupyter's path: its cookie has the same name unless this one's has its own."""
    if path == "/":
        return []
    return [f"--ServerApp.base_url={path}", f"--IdentityProvider.cookie_name=labkit-{port}"]


def idle_options(minutes: float) -> list[str]:
    """Jupyter's own settings for ending kernels, and then the server, that nobody uses.

    A kernel that computes, or that a browser is connected to, is in use; so is a server whose page is open.
    """
    if not minutes:
        return []
    seconds = max(1, round(minutes * 60))
    return [
        f"--ServerApp.shutdown_no_activity_timeout={seconds}",
        f"--MappingKernelManager.cull_idle_timeout={seconds}",
        f"--MappingKernelManager.cull_interval={min(60, seconds)}",
        f"--TerminalManager.cull_inactive_timeout={seconds}",
        f"--TerminalManager.cull_interval={min(60, seconds)}",
    ]


def is_course(root: Path) -> bool:
    """Whether nbgrader has work in this folder; its menus and buttons are shown there only."""
    return (root / "nbgrader_config.py").exists()


def write_lab_config(private: Path, root: Path) -> None:
    """Leave out of JupyterLab's page two questions it asks, and outside of courses nbgrader's tools.

    Long lines are wrapped: docstrings say what is checked, and a narrow page hid where they end.
    """
    disabled = {"@jupyterlab/apputils-extension:announcements": True}
    if not is_course(root):
        disabled["@jupyter/nbgrader"] = True
    notebooks = {"autoStartDefaultKernel": True, "codeCellConfig": {"lineWrap": True}}
    settings = {"@jupyterlab/notebook-extension:tracker": notebooks}
    folder = private / "labconfig"
    folder.mkdir()
    (folder / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    (folder / "default_setting_overrides.json").write_text(json.dumps(settings))


def free_port(ip: str, first: int) -> int:
    """The first port from `first` on that nothing listens on. Raises CannotStart when there is none, and when
    `ip` is no address of this host.
    """
    last = min(first + _PORTS_TRIED, 65536)
    for port in range(first, last):
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("" if ip == "*" else ip, port))  # "*" is the server's word for all addresses
            except PermissionError as error:
                raise CannotStart(f"port {port} needs root; give another with PORT= or --port") from error
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # no other port would do
                    remedy = "--ip takes an address of this host, or 0.0.0.0 for all of them"
                    raise CannotStart(f"{ip} cannot be listened on: {error}; {remedy}") from error
                continue
            return port
    raise CannotStart(f"ports {first} to {last - 1} on {ip} are taken; give another with PORT= or --port")


def own_port(ports: tuple[int, int], uid: int) -> int:
    """The first of the ten ports, of a range, that the person with this user id has on every node, every day.

    The ids of a class are mostly handed out in a row: as many people in a row as there are tens never meet,
    and who starts a second server gets the next of their own ten.
    """
    persons = max(1, (ports[1] - ports[0] + 1) // _PORTS_EACH)
    return ports[0] + _PORTS_EACH * (uid % persons)


def is_remote(environment: Mapping[str, str]) -> bool:
    """Whether the person sits at another machine: we were reached by ssh, or by a Slurm job."""
    return "SSH_CONNECTION" in environment or "SLURM_JOB_ID" in environment


def has_screen(environment: Mapping[str, str]) -> bool:
    """Whether a browser started here would be seen."""
    if is_remote(environment):
        return False
    return sys.platform == "darwin" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def announcement(
    ip: str, port: int, token: str, root: Path, environment: Mapping[str, str], host: str
) -> str:
    """What to open, and from a remote node also the tunnel that makes it reachable."""
    page = page_of_lab(token)
    url = f"http://{host_in_url(ip)}:{port}/{page}"
    lines = ["", f"JupyterLab is open on {root}", ""]
    if is_remote(environment):
        lines += [
            "On your own machine, in a terminal that stays open:",
            "",
            f"    {tunnel(ip, port, environment, host)}",
            "",
        ]
        lines += ["then in your browser:", "", f"    http://127.0.0.1:{port}/{page}", ""]
    else:
        lines += [f"    {url}", ""]
    return "\n".join([*lines, "Ctrl-C ends it.", ""])


def page_of_lab(token: str) -> str:
    """JupyterLab's page, which the token opens: one that somebody has set may have a + or a &."""
    return f"lab?token={quote(token, safe='')}"


def host_in_url(ip: str) -> str:
    """The name this host's own browser reaches a server by that listens on `ip`."""
    if ip in (*_ANY, "localhost"):
        return "127.0.0.1"
    return f"[{ip}]" if ":" in ip else ip


def tunnel(ip: str, port: int, environment: Mapping[str, str], host: str) -> str:
    """The ssh command that brings `port` of this host to the person's own machine."""
    user = environment.get("USER") or _user_name()
    login = environment.get("SLURM_SUBMIT_HOST")
    seen = host_in_url(ip)  # from this host itself
    if "SLURM_JOB_ID" not in environment or login in (None, host):
        return f"ssh -N -L {port}:{seen}:{port} {user}@{host}"
    if ip in _LOOPBACK:  # only the node itself can reach it: go through the login node to the node
        return f"ssh -N -L {port}:{seen}:{port} -J {user}@{login} {user}@{host}"
    return f"ssh -N -L {port}:{host if ip in _ANY else seen}:{port} {user}@{login}"


def _user_name() -> str:
    """This person's name; in a container that knows only their number, a word to put it in place of."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "YOUR-NAME"


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder of our own, in /tmp where we can: the paths of the kernels' sockets must be short.

    Whoever is killed leaves theirs, with the secrets of a server in it, and the next one removes it: a folder
    is in use as long as somebody holds a lock on a file in it.
    """
    prefix = f"labkit-lab-{os.getuid()}-"
    try:
        parent = Path("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir())
        for left in parent.glob(f"{prefix}*"):
            _remove_unused(left)
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        remedy = "make room in /tmp, or export TMPDIR=/path/to/a/short/folder"
        raise CannotStart(f"no temporary folder can be made: {error}; {remedy}") from error
    with made as folder:
        path = Path(folder)
        with (path / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (path / "unlocked").rename(path / _LOCK)  # nobody finds it before it is locked
            yield path


def _remove_unused(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.getuid():  # what another has put there may be a pipe: nobody opens it
            return
        with (folder / _LOCK).open() as lock:  # it may be locked
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _environment(token: str, private: Path) -> dict[str, str]:
    config_path = [str(private), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    return {
        **os.environ,
        "JUPYTER_TOKEN": token,
        "JUPYTER_RUNTIME_DIR": str(private),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(config_path),
        "JUPYTER_PREFER_ENV_PATH": "1",  # `python3` is this environment's, not a kernel in somebody's home
    }


def _wait_until_up(server: subprocess.Popen[bytes], url: str, token: str) -> bool:
    """Whether the server answers before it ends. On a busy shared file system this can take a minute; where
    it takes longer, stderr says how long it has been and what came instead of an answer.
    """
    request = f"{url}?token={quote(token, safe='')}"  # as in the page's address: no header has all characters
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.monotonic()
    say_at = began + _SAY_EVERY
    while server.poll() is None:
        try:
            with direct.open(request, timeout=5):
                return True
        except (OSError, http.client.HTTPException) as error:  # the second: what answers is no web server
            if (now := time.monotonic()) > say_at:
                told = f"JupyterLab (process {server.pid}) has not answered for {now - began:.0f} s at {url}"
                print(f"{told}: {error}. Still waiting; Ctrl-C ends it.", file=sys.stderr, flush=True)
                say_at = now + _SAY_EVERY
            time.sleep(0.1)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
