"""What the hub's settings file says reaches JupyterHub and Slurm, and a wrong name in it is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
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
        assert "--MappingKernelManager.cull_idle_timeout=1800" in spawner.args


@pytest.mark.parametrize(
    ("text", "told"), [("[slurm]\ngpus = 1", "slurm.gpus"), ("[slrum]\ncpus = 1", "slrum")]
)
def test_a_name_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    site = tmp_path / "labkit.toml"
    site.write_text(text)
    with pytest.raises(SystemExit, match=f"no setting {told};.*labkit.toml has those there are"):
        load(site, monkeypatch)


def test_a_file_that_is_asked_for_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.toml"):
        load(tmp_path / "none.toml", monkeypatch)
