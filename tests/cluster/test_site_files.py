"""Site files: those we ship are right, what is wrong in one is told; times are read as Slurm reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_helpers import without_answers

import labkit
from labkit import hosts
from labkit.launch.failure.errors import InfrastructureError
from labkit.launch.handover.request import Wanted
from labkit.launch.nodes.place import Nodes
from labkit.settings import SettingsError
from labkit.slurm.site import SITES, find_site, load_site, site_path
from labkit.slurm.units import minutes_of, slurm_time


@pytest.mark.parametrize("path", sorted(SITES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_sites_we_ship_are_right(path: Path) -> None:
    load_site(path)


def test_leonardo_is_as_its_documentation_says() -> None:
    site = load_site(SITES / "leonardo.toml")
    assert (site.node.gpus, site.node.gpu_memory_gib, site.node.cpus) == (4, 64, 32)
    assert not site.tested, "nobody has run the course there yet"
    asked = site.options(nodes=2, gpus=4, minutes=90, account="abc")
    assert asked == ["--time=01:30:00", "--partition=boost_usr_prod", "--account=abc", "--gpus-per-node=4"]


def test_a_quality_of_service_that_is_asked_for_wins_over_the_partitions(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("name = 'x'\n[[partitions]]\nname = 'p'\nqos = 'normal'")
    asked = {"nodes": 1, "gpus": 0, "minutes": 5}
    site = load_site(path)
    assert "--qos=normal" in site.options(**asked, environment={})
    assert "--qos=debug" in site.options(**asked, qos="debug", environment={})
    assert "--qos=course" in site.options(**asked, environment={"SBATCH_QOS": "course"})


def test_a_folder_with_the_name_of_a_site_is_not_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generic").mkdir()
    assert find_site("generic") == load_site(site_path("generic"))
    assert site_path("generic").is_absolute()  # for a job, which may begin elsewhere
    (tmp_path / "own").write_text("name = 'own'")
    assert find_site("own").name == "own"


@pytest.mark.parametrize(("has_cuda", "backend"), [(True, "nccl"), (False, "gloo")])
def test_ranks_take_a_sites_gpus_where_torch_can(
    has_cuda: bool, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workbook may have been installed on a login node, which has no GPU and gets a torch for none."""
    monkeypatch.setenv("LABKIT_SITE", "leonardo")
    monkeypatch.setenv("SBATCH_ACCOUNT", "abc")
    monkeypatch.setenv("PATH", without_answers(tmp_path / "bin", "sbatch"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: has_cuda)
    request, notes = Nodes(2).plan(Wanted())
    assert (request.backend, request.ranks, bool(request.devices)) == (backend, 8, has_cuda)
    assert has_cuda or "4 GPUs there, and a torch without CUDA" in notes[0]


def test_ranks_of_a_site_are_placed_by_the_environment_that_they_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_SITE", "leonardo")
    monkeypatch.setenv("SBATCH_ACCOUNT", "abc")
    monkeypatch.setenv("PATH", without_answers(tmp_path / "bin", "sbatch"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    second, _ = Nodes(2).plan(Wanted(env={"CUDA_VISIBLE_DEVICES": "1"}))
    assert (second.ranks, second.backend, second.devices) == (2, "nccl", [0, 0])
    hidden, _ = Nodes(2).plan(Wanted(env={"CUDA_VISIBLE_DEVICES": ""}))
    assert (hidden.ranks, hidden.backend, hidden.devices) == (8, "gloo", [])


@pytest.mark.days
def test_ranks_that_a_site_does_not_give_cost_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is stopped for another one: not for one of two nodes where there is one, or no Slurm."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    path = tmp_path / "site.toml"
    path.write_text("name = 'x'\n[[partitions]]\nname = 'p'\nmax_nodes = 1")
    with labkit.session(ranks=1) as there:
        there.run("kept = 1")
        with monkeypatch.context() as small:
            small.setenv("LABKIT_SITE", str(path))
            with pytest.raises(ValueError, match="2 nodes: p of x gives at most 1"):
                labkit.session(ranks=2, nodes=2, instead_of=there)
        with monkeypatch.context() as without_slurm:
            without_slurm.setenv("PATH", str(tmp_path))
            with pytest.raises(InfrastructureError, match="no sbatch here"):
                labkit.session(ranks=2, nodes=2, instead_of=there)
        with monkeypatch.context() as without_slurm:
            without_slurm.setenv("SLURM_JOB_ID", "7")
            without_slurm.setenv("SLURM_JOB_NODELIST", "n[1-2]")
            without_slurm.setenv("PATH", str(tmp_path))
            with pytest.raises(InfrastructureError, match="no scontrol here"):
                labkit.session(ranks=2, nodes=2, instead_of=there)
        assert there.run("kept").values == {0: "1"}


@pytest.mark.parametrize("word", ["infinite", "UNLIMITED", "", "0"])
def test_a_partition_without_a_limit_of_time(tmp_path: Path, word: str) -> None:
    """In the words of sinfo and of scontrol; left out; and 0, which is what Slurm reads as none."""
    path = tmp_path / "site.toml"
    path.write_text(f"name = 'x'\n[[partitions]]\nname = 'p'\nmax_time = '{word}'")
    assert "--time=100-00:00:00" in load_site(path).options(nodes=1, gpus=0, minutes=144_000, environment={})


def test_no_time_at_all_is_refused(tmp_path: Path) -> None:
    """Slurm would take it for no limit, past that of the partition."""
    path = tmp_path / "site.toml"
    path.write_text("name = 'x'\ntime = '0'\n[[partitions]]\nname = 'p'\nmax_time = '1:00:00'")
    site = load_site(path)
    with pytest.raises(ValueError, match="a time of 0 means no limit to Slurm"):
        site.options(nodes=1, gpus=0, minutes=site.minutes, environment={})
    with pytest.raises(ValueError, match=r"2:00:00 is too long: p of x gives at most 1:00:00"):
        site.options(nodes=1, gpus=0, minutes=120, environment={})


def test_a_part_of_a_node_comes_with_its_share_of_the_cores() -> None:
    """Leonardo charges the largest share of a node that a job holds: one GPU of four, and no more cores."""
    site = load_site(SITES / "leonardo.toml")
    assert [site.cores(gpus) for gpus in (1, 2, 4)] == [8, 16, 32]
    assert site.cores_and_memory(1, None, "") == ["--cpus-per-task=8"]
    assert site.cores_and_memory(1, 4, "16G") == ["--cpus-per-task=4", "--mem=16G"]
    assert site.cores(0) == 32, "without GPUs nothing says how many are enough"
    assert load_site(SITES / "generic.toml").cores(1) == 0, "a site that does not say"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 'x'\nmodule = ['a']", "module: not a setting; did you mean modules?"),
        ("name = 'x'\nfabric = 'ib0'", "fabric: not a setting; there are name, scheduler, tested"),
        ("scheduler = 'slurm'", "name: is missing; expected what people call the site"),
        (
            "name = 'x'\naccount = 'yes'",
            'account: expected "none" or "optional" or "required", found \'yes\'',
        ),
        ("name = 'x'\nports = [10, 20]", "between 1024 and 65535, such as [10000, 15999], found [10, 20]"),
        ("name = 'x'\nports = [2000, 1999]", "ports: expected the first before the last, found [2000, 1999]"),
        ("name = 'x'\nmodules = ['a', 1]", "modules: expected a list of texts, found ['a', 1]"),
        ("name = 'x'\nnode = 4", "node: expected a table, found 4"),
        ("name = 'x'\nnode.gpus = '4'", "node.gpus: expected a whole number, 0 or more, found '4'"),
        ("name = 'x'\nnode.cpus = -1", "node.cpus: expected a whole number, 0 or more, found -1"),
        ("name = 'x'\nnode.gpus = 4", "node.gpus: say also what they are"),
        (
            "name = 'x'\n[[partitions]]\nname = 'p'\nmax_time = 'long'",
            'partitions 1, max_time: expected a time such as 01:30:00 (hours:minutes:seconds), or "infinite"',
        ),
        ("name = 'x'\ntime = 'infinite'", "time: expected a time such as 01:30:00"),
        ("name = 'x'\ntime = ''", "time: expected a time such as 01:30:00"),
        ("name = 'x", "it cannot be read as TOML"),
        ("name = 'x'\npartitions = ['gpu']", "partitions 1: expected a table, found 'gpu'"),
        ("name = 'x'\npartitions = 'gpu'", "partitions: expected a list of tables, found 'gpu'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_site(path)
    assert any(says in problem for problem in caught.value.problems), caught.value.problems


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Names, kinds, what does not go together and times, on all levels."""
    path = tmp_path / "site.toml"
    path.write_text(
        "acount = 'none'\nports = [3000, 2000]\nscheduler = 'pbs'\n[node]\ngpus = 4\ncpu = 8\n"
        "[[partitions]]\nmax_time = 'long'\nmax_nodes = -1\n[[partitions]]\nname = ''\nlimit = 3"
    )
    with pytest.raises(SettingsError) as caught:
        load_site(path)
    where = [problem.partition(":")[0] for problem in caught.value.problems]
    assert sorted(where) == [
        "acount",
        "name",
        "node.cpu",
        "node.gpus",
        "partitions 1, max_nodes",
        "partitions 1, max_time",
        "partitions 1, name",
        "partitions 2, limit",
        "partitions 2, name",
        "ports",
        "scheduler",
    ]


@pytest.mark.days
def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("name = 'x'\naccount = 'yes'")
    command = [sys.executable, "-m", "labkit.cli", "doctor", "--json", "--site"]
    wrong = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["findings"][0]["says"].startswith("account: expected")
    right = subprocess.run([*command, "workstation"], capture_output=True, text=True, timeout=60)
    assert right.returncode == 0
    missing = subprocess.run([*command, "nowhere"], capture_output=True, text=True, timeout=60)
    assert "cluster/sites has generic, leonardo, workstation" in missing.stdout


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30", 30), ("30:00", 30), ("30:01", 31), ("01:30:00", 90), ("1-0", 1440), ("1-02:30", 1590)],
)
def test_times(text: str, minutes: int) -> None:
    """The forms of sbatch's manual: minutes, minutes:seconds, hours:minutes:seconds, days-hours, ..."""
    assert minutes_of(text) == minutes
    assert minutes_of(slurm_time(minutes)) == minutes
