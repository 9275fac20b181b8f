"""JupyterHub as cluster/jupyterhub sets it up: a real hub and proxy, a real Slurm, a browser, and users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from people import FIRST_UID, REPOSITORY, People, people
from playwright.sync_api import Locator, Page, expect
from slurm_cluster import LocalSlurm, _free_ports

sys.path.insert(0, str(REPOSITORY / "tests" / "browser"))
from jupyter_page import NotebookPage, browser_page

LESSON = "00_collectives"
PASSWORD = "let me in"
RANKS = """import os
import labkit
def me(): return int(os.environ["RANK"]), os.getuid(), os.environ["SLURM_JOB_ID"]
labkit.launch(me, ranks=2).results"""

SITE = """
name = "Oak"
node = {cpus = 8, memory_gib = 3, gpus = 2, gpu = "a file", gpu_memory_gib = 1}
partitions = [{name = "all", max_time = "00:30:00"}]
"""

pytestmark = [pytest.mark.hub, pytest.mark.slurm, pytest.mark.browser, pytest.mark.timeout(240)]


class SlurmAmongPeople(LocalSlurm):
    """A Slurm whose daemons know the people, so that jobs run as them."""

    def __init__(self, house: People) -> None:
        super().__init__(house.root / "slurm")
        self.root.mkdir()
        self.namespace = house.namespace

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        return super()._daemon("nsenter", f"--mount={self.namespace}", *command)

    def run(self, *command: str, seconds: float = 20) -> str:
        return super().run("nsenter", f"--mount={self.namespace}", *command, seconds=seconds)

    def stop(self) -> list[str]:
        with suppress(subprocess.SubprocessError):
            self.run("scancel", "--partition=all")  # of all users
        return super().stop()


@dataclass
class Hub:
    url: str
    house: People
    slurm: SlurmAmongPeople
    exchange: Path

    def login(self, page: Page, user: str, then: str) -> None:
        page.goto(f"{self.url}/hub/login?next={then}")
        page.fill("#username_input", user)
        page.fill("#password_input", PASSWORD)
        page.click("#login_submit")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A running hub with a lesson in its exchange. At its end nothing of it, Slurm or the users may run."""
    with people("teacher", "ada", "bob") as house:
        slurm = SlurmAmongPeople(house)
        try:
            slurm.start()
            exchange = make_exchange(house)
            with running_hub(house, slurm, exchange, tmp_path / "hub.log") as url:
                yield Hub(url, house, slurm, exchange)
            left = of_users()
        finally:
            left_of_slurm = slurm.stop()
    assert left == []
    assert left_of_slurm == []


def make_exchange(house: People) -> Path:
    exchange = house.root / "exchange"
    shutil.copytree(REPOSITORY / "notebooks" / LESSON, exchange / "tml" / "outbound" / LESSON)
    (exchange / "tml" / "inbound").mkdir()
    for path, mode in {exchange: 0o1777, exchange / "tml" / "inbound": 0o2733}.items():
        path.chmod(mode)
    return exchange


@contextmanager
def running_hub(house: People, slurm: SlurmAmongPeople, exchange: Path, log: Path) -> Iterator[str]:
    port, hub_port, proxy_port = _free_ports(3)
    (house.root / "state").mkdir(mode=0o700)
    (house.root / "oak.toml").write_text(SITE)
    (house.root / "labkit.toml").write_text(f"""
[hub]
url = "http://127.0.0.1:{port}"
address = "127.0.0.1"
port = {hub_port}
proxy_port = {proxy_port}
state = "{house.root}/state"
users = ["ada", "bob"]
[course]
id = "tml"
exchange = "{exchange}"
shared = "{REPOSITORY}/notebooks"
[slurm]
time = "00:05:00"
cpus = 2
mem = "2G"
addresses = {{n1 = "127.0.0.1", n2 = "127.0.0.1"}}
[choices]
site = "{house.root}/oak.toml"
[server]
environment = "{sys.prefix}"
""")
    site = house.root / "jupyterhub_config.py"
    site.write_text(f"""
load_subconfig("{REPOSITORY}/cluster/jupyterhub/jupyterhub_config.py")
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{PASSWORD}"
c.Spawner.poll_interval = 1
""")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**slurm.environment, "LABKIT_HUB": str(house.root / "labkit.toml"), "PATH": path}
    command = house.command("root", ["jupyterhub", "-f", str(site)])
    with log.open("w") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            wait_until_up(f"http://127.0.0.1:{port}/hub/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            _, left = psutil.wait_procs([psutil.Process(process.pid), *family], timeout=20)
            for one in left:
                one.kill()
    assert left == [], "the hub and its proxy end together"


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 40
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def of_users(until_none: float = 0) -> list[str]:
    """What runs as one of the people, after at most so many seconds."""
    deadline, mine = time.monotonic() + until_none, range(FIRST_UID, FIRST_UID + 10)
    while True:
        found = [p for p in psutil.process_iter(["uids"]) if p.info["uids"] and p.info["uids"].real in mine]
        if not found or time.monotonic() > deadline:
            return [str(process) for process in found]
        time.sleep(0.1)


@pytest.mark.days
def test_a_student_from_login_to_stop(hub: Hub) -> None:
    with browser_page() as page:
        hub.login(page, "ada", "/hub/spawn")
        refuse_what_is_not_offered(page, hub)
        page.select_option("#gpus", "1")
        page.select_option("#mem", "3G")
        page.click("text=Start")
        page.wait_for_url("**/user/ada/lab**", timeout=90_000)
        assert hub.slurm.run("squeue", "-h", "-o", "%u %T %j") == "ada RUNNING jupyter"
        assert hub.slurm.run("squeue", "-h", "-o", "%P %c %m %l %b") == "all 2 3G 5:00 gres:gpu:1"
        fetch(page)
        work = hub.house.home("ada") / "course"
        with NotebookPage.open(page, f"{hub.url}/user/ada/lab?reset", f"{LESSON}/{LESSON}.ipynb") as notebook:
            cell = notebook.code_cells.filter(has=page.locator(".cm-content")).first  # the imports are folded
            run_in(cell, RANKS)
            expect(cell).to_contain_text(f"(1, {FIRST_UID + 1}, '1')", timeout=60_000)
            notebook.save(work / LESSON / f"{LESSON}.ipynb")
        assert (work / LESSON / f"{LESSON}.ipynb").stat().st_uid == FIRST_UID + 1
        assert (work / "shared" / LESSON).is_dir()
        refused = hub.house.run("ada", "touch", str(work / "shared" / "mine"), check=False)
        assert "Permission denied" in refused.stderr or "Read-only" in refused.stderr

        assert page.context.browser is not None
        other = page.context.browser.new_page()
        hub.login(other, "bob", "/hub/home")
        other.wait_for_url("**/hub/home")
        other.goto(f"{hub.url}/user/ada/lab")
        expect(other.locator("body")).to_contain_text("403", timeout=30_000)
        assert "course" not in hub.house.run("bob", "ls", str(work), check=False).stdout

        page.goto(f"{hub.url}/hub/home")
        page.click("#stop")
        expect(page.locator("#start")).to_have_text("Start My Server", timeout=30_000)
    assert hub.slurm.run("squeue", "-h") == ""
    assert of_users(until_none=10) == []
    assert [path for path in Path("/tmp").glob("jupyter-*") if path.stat().st_uid == FIRST_UID + 1] == []


def refuse_what_is_not_offered(page: Page, hub: Hub) -> None:
    """Neither the page, with a value of one's own in its list, nor the hub's API takes more than there is."""
    for value in ("9", "1\n#SBATCH --exclusive"):
        page.locator("#gpus").evaluate("(list, text) => list.add(new Option(text, text, true, true))", value)
        with page.expect_navigation():
            page.click("text=Start")
        expect(page.locator(".spawn-error-msg")).to_contain_text("there is 0, 1, 2 (a node of Oak has 2)")
    key = next(one["value"] for one in page.context.cookies() if one["name"] == "_xsrf")
    for told in ({"gpus": 9}, {"options": "#SBATCH --exclusive"}, {"cmd": "touch ~/was-here; sleep 99"}):
        answer = page.request.post(
            f"{hub.url}/hub/api/users/ada/server?_xsrf={key}", data=told, headers={"Referer": page.url}
        )
        assert answer.status == 400
        assert "there is" in answer.json()["message"], answer.json()
    assert hub.slurm.run("squeue", "-h") == ""


def fetch(page: Page) -> None:
    """Get the lesson as a student does: Nbgrader, Assignment List, Fetch."""
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Assignment List").click()
    page.get_by_role("button", name="Fetch").first.click()
    expect(page.get_by_role("button", name="Submit").first).to_be_visible(timeout=30_000)


def run_in(cell: Locator, text: str) -> None:
    """Put this into a notebook's code cell and run it."""
    page = cell.page
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")
