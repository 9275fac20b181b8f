"""What the hub's settings file says reaches JupyterHub and Slurm, and a wrong name in it is told."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tornado.web import HTTPError
from traitlets.config import Config, PyFileConfigLoader

HUB = Path(__file__).resolve().parents[2] / "cluster" / "jupyterhub"

pytestmark = pytest.mark.hub


def load(settings: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("LABKIT_HUB", str(settings))
    return PyFileConfigLoader("jupyterhub_config.py", path=str(HUB)).load_config()


def test_a_site_says_only_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "labkit.toml"
    site.write_text(
        '[hub]\nusers = ["ada"]\ninstructors = ["teacher"]\n'
        '[slurm]\npartition = "gpu"\ngpus-per-node = 4\nmem = ""\noptions = ["--qos=course"]\n'
        '[course]\nwork = "my work"\nshared = "/srv/it\'s here"\n'
        "[server]\nidle_minutes = 30\n"
    )
    c = load(site, monkeypatch)
    assert c.Authenticator.allowed_users == {"ada", "teacher"}
    assert not c.Authenticator.allow_all
    assert c.SlurmSpawner.req_options.splitlines() == [
        f"#SBATCH --{option}"
        for option in (
            "partition=gpu",
            "time=04:00:00",
            "nodes=1",
            "gpus-per-node=4",
            "cpus-per-task=4",
            "qos=course",
        )
    ]
    assert "ln -sfn '/srv/it'\"'\"'s here' \"$HOME\"/'my work'/shared" in c.SlurmSpawner.req_prologue
    for user, folders in {"ada": ["students", "everybody"], "teacher": ["everybody"]}.items():
        spawner = SimpleNamespace(user=SimpleNamespace(name=user), environment={}, args=[])
        c.Spawner.pre_spawn_hook(spawner)
        assert spawner.environment["JUPYTER_CONFIG_PATH"].split(":") == [str(HUB / name) for name in folders]
        idle = dict(argument.split("=") for argument in spawner.args if "timeout" in argument)
        assert idle == {
            "--MappingKernelManager.cull_idle_timeout": "1800",
            "--TerminalManager.cull_inactive_timeout": "1800",
            "--ServerApp.shutdown_no_activity_timeout": "1800",
        }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[slurm]\ngpus = 1", r"slurm.gpus: not a setting; did you mean gpus-per-node\?"),
        ("[slrum]\ncpus = 1", r"slrum: not a setting; did you mean slurm\?"),
        ("[slurm]\ncpus = '4'", "slurm.cpus: expected a whole number, found '4'"),
        ("[hub]\nusers = 'ada'\nport = true", "hub.port: .*; hub.users: expected a list, found 'ada'"),
    ],
)
def test_what_is_wrong_with_the_settings_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    site = tmp_path / "labkit.toml"
    site.write_text(text)
    with pytest.raises(SystemExit, match=f"{told}.*labkit.toml has all settings"):
        load(site, monkeypatch)


def test_a_file_that_is_asked_for_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"none\.toml: there is no such file, and LABKIT_HUB names it"):
        load(tmp_path / "none.toml", monkeypatch)


SITE = """
name = "Oak"
[node]
cpus = 16
memory_gib = 12
gpus = 4
gpu = "A100"
gpu_memory_gib = 40
[[partitions]]
name = "course"
max_time = "02:00:00"
qos = "teach"
"""


def with_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str = "") -> Config:
    (tmp_path / "oak.toml").write_text(SITE)
    hub = tmp_path / "labkit.toml"
    hub.write_text(
        f'[slurm]\ntime = "01:00:00"\nmem = "4G"\n[choices]\nsite = "{tmp_path}/oak.toml"\n{settings}'
    )
    return load(hub, monkeypatch)


def test_without_a_site_nothing_is_to_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "labkit.toml").write_text("[slurm]\ncpus = 2\n")
    c = load(tmp_path / "labkit.toml", monkeypatch)
    assert "options_form" not in c.Spawner


def test_nothing_that_is_sent_reaches_the_batch_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """batchspawner by itself fills in `cmd` and the like from what the person sent, also without choices."""
    (tmp_path / "labkit.toml").write_text("[slurm]\ncpus = 2\n")
    c = load(tmp_path / "labkit.toml", monkeypatch)
    ours = {"req_username": "ada", "req_homedir": "/home/ada", "req_keepvars": "PATH"}
    spawner = c.JupyterHub.spawner_class(config=c, **ours)
    sent = dict.fromkeys(("cmd", "options", "prologue", "homedir", "keepvars"), "evil")
    script = asyncio.run(spawner._get_batch_script(**sent))
    assert "evil" not in script
    assert "#SBATCH --cpus-per-task=2" in script
    assert script.rstrip().endswith("jupyterhub-singleuser")


def test_a_node_without_room_for_the_kernels_sockets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labkit.toml").write_text("[slurm]\ncpus = 2\n")
    c = load(tmp_path / "labkit.toml", monkeypatch)
    ours = {"req_username": "ada", "req_homedir": str(tmp_path), "req_keepvars": "PATH"}
    spawner = c.JupyterHub.spawner_class(config=c, batchspawner_singleuser_cmd="echo served", **ours)
    script = asyncio.run(spawner._get_batch_script())
    (tmp_path / "mktemp").write_text("#!/bin/sh\necho 'mktemp: No space left on device' >&2\nexit 1\n")
    (tmp_path / "mktemp").chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = {"input": script, "env": environment, "capture_output": True, "text": True, "timeout": 20}
    done = subprocess.run(["bash"], **words)
    assert done.returncode == 1
    assert "No space left on device\nno folder could be made in /tmp of" in done.stderr
    assert done.stdout == "", "and no server is started with its sockets elsewhere"
    (tmp_path / "mktemp").unlink()
    assert "served" in subprocess.run(["bash"], **words).stdout


def test_choices_go_up_to_what_the_site_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    c = with_choices(tmp_path, monkeypatch, "cpus = [4, 16]")
    page = c.Spawner.options_form(SimpleNamespace(user_options={"gpus": "2", "cpus": ["<b>"]}))
    offered = {
        part.split('"')[0]: re.findall(r"<option(?: selected)?>([^<]*)", part)
        for part in page.split('name="')[1:]
    }
    assert offered == {
        "gpus": ["0", "1", "2", "4"],
        "cpus": ["4", "16"],
        "mem": ["4G", "8G", "12G"],
        "time": ["00:30:00", "01:00:00", "02:00:00"],
    }
    assert re.findall(r"<option selected>([^<]*)", page) == ["2", "4", "4G", "01:00:00"], "as the last time"
    spawner = SimpleNamespace(req_options="")
    told = c.Spawner.options_from_form({"gpus": ["1"], "cpus": ["16"], "mem": ["12G"], "time": ["02:00:00"]})
    c.Spawner.apply_user_options(spawner, told)
    asked = (
        "partition=course",
        "time=02:00:00",
        "nodes=1",
        "gpus-per-node=1",
        "mem=12G",
        "cpus-per-task=16",
        "qos=teach",
    )
    assert spawner.req_options.splitlines() == [f"#SBATCH --{option}" for option in asked]


HOSTILE = [
    {"gpus": "5"},
    {"gpus": "-1"},
    {"gpus": True},
    {"gpus": ["1", "4"]},
    {"gpus": {"1": 1}},
    {"cpus": "2\n#SBATCH --exclusive"},
    {"mem": "4G --exclusive"},
    {"mem": "0"},
    {"mem": "$(id)"},
    {"time": "02:00:00\nid"},
    {"time": "UNLIMITED"},
    {"time": None},
    {"options": "#SBATCH --exclusive"},
    {"cmd": "id", "gpus": "1"},
    {"gpus-per-node": "1"},
    {"homedir": "{{cmd}}"},
    {"<script>": "x" * 1000},
]


@pytest.mark.parametrize("told", HOSTILE, ids=str)
def test_what_is_not_offered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, object]
) -> None:
    c = with_choices(tmp_path, monkeypatch)
    spawner = SimpleNamespace(req_options="before")
    with pytest.raises(HTTPError, match=r"(is not offered|is to be chosen); there is ") as caught:
        c.Spawner.apply_user_options(spawner, told)
    assert caught.value.status_code == 400
    assert len(caught.value.jupyterhub_message) < 300, "the page can show it"
    assert spawner.req_options == "before"
    sent = {
        name: [str(each) for each in value] if isinstance(value, list) else [str(value)]
        for name, value in told.items()
    }
    with pytest.raises(HTTPError, match="there is"):
        c.Spawner.options_from_form(sent)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("gpus = [0, 8]", "gpus: 8 is too much: a node of Oak has 4"),
        ('mem = ["4G", "16G"]', "mem: 16G is too much: a node of Oak has 12G"),
        ('time = ["01:00:00", "1-0"]', "time: 1-00:00:00 is too much: course of Oak gives at most 02:00:00"),
        ('time = ["0", "01:00:00"]', "time: 00:00:00 is too little"),
        ('time = ["soon"]', "expected a time such as 01:30:00"),
        ('mem = ["much"]', "expected memory such as 16G and found 'much'"),
        ("cpus = [8, 16]", r"slurm.cpus: 4 is not among the choices.cpus"),
    ],
)
def test_an_operator_is_told_what_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, told: str
) -> None:
    with pytest.raises(SystemExit, match=told):
        with_choices(tmp_path, monkeypatch, settings)
