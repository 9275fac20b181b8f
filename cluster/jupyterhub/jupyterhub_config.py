"""JupyterHub for a course: each server is a Slurm job of its user's own.

    jupyterhub -f cluster/jupyterhub/jupyterhub_config.py

Settings come from the TOML file that LABKIT_HUB names (/etc/jupyterhub/labkit.toml without it); `labkit.toml`
beside this file has all of them, with their defaults. Anything else of JupyterHub's can be set in a file that
begins with load_subconfig("/path/to/this/file").
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from batchspawner import MultiSlurmSpawner
from batchspawner.batchspawner import format_template
from tornado.web import HTTPError
from traitlets.config import Config

from labkit.jupyter.lab import idle_options
from labkit.settings import SettingsError, read_settings, settings_like
from labkit.slurm.choices import Choice, chosen, form, from_form, offered
from labkit.slurm.site import find_site

HERE = Path(__file__).resolve().parent


def hub_settings() -> dict[str, dict]:
    """The defaults, with what the operator's file says in their place; what is wrong there is told."""
    kind = settings_like(HERE / "labkit.toml")
    path = Path(os.environ.get("LABKIT_HUB", "/etc/jupyterhub/labkit.toml"))
    if "LABKIT_HUB" not in os.environ and not path.exists():
        return msgspec.to_builtins(kind())
    try:
        return msgspec.to_builtins(read_settings(path, kind))
    except FileNotFoundError:
        raise SystemExit(f"{path}: there is no such file, and LABKIT_HUB names it") from None
    except SettingsError as error:
        raise SystemExit(f"{error}. {HERE / 'labkit.toml'} has all settings") from None


BATCH_SCRIPT = """#!/bin/bash
#SBATCH --job-name=jupyter
#SBATCH --chdir={{homedir}}
#SBATCH --output={{homedir}}/.jupyter-on-slurm.log
#SBATCH --open-mode=truncate
#SBATCH --export={{keepvars}}
{{options}}

umask 077                 # what is made here is this user's alone
{{prologue}}
# Kernels talk over sockets in a folder that only this user can enter; the paths of sockets must be short.
JUPYTER_RUNTIME_DIR=$(mktemp -d /tmp/jupyter-XXXXXX) || {
    echo "no folder could be made in /tmp of $(hostname): without it there is no server" >&2
    exit 1
}
export JUPYTER_RUNTIME_DIR
trap 'rm -rf "$JUPYTER_RUNTIME_DIR"' EXIT
# Without srun, which would start the server once a task: lessons start their own ranks.
{{cmd}}
"""


class CourseSpawner(MultiSlurmSpawner):
    """batchspawner's, but what people send never reaches the batch script: it would fill in what it calls
    `user_options` under their own names, and so let anybody replace the script's command or sbatch's options.
    """

    async def _get_batch_script(self, **_: object) -> str:
        ours = {**self.get_req_subvars(), "cmd": self.cmd_formatted_for_batch()}
        return format_template(self.batch_script, **ours)


def configure(c: Config, hub: dict, course: dict, slurm: dict, choices: dict, server: dict) -> None:
    """The hub, then what it starts."""
    configure_hub(c, hub)
    programs = Path(server["environment"]) / "bin"
    c.JupyterHub.spawner_class = CourseSpawner
    # For sbatch and scancel the hub becomes the user: root can, any other account needs a rule for sudo.
    become = "/usr/sbin/runuser -u {username} --" if os.geteuid() == 0 else "sudo -E -u {username}"
    c.BatchSpawnerBase.exec_prefix = become
    # Both become part of a line of the batch script.
    c.BatchSpawnerBase.batchspawner_singleuser_cmd = shlex.quote(str(programs / "batchspawner-singleuser"))
    c.Spawner.cmd = [shlex.quote(str(programs / "jupyterhub-singleuser"))]
    c.SlurmSpawner.batch_script = BATCH_SCRIPT
    configure_choices(c, slurm, choices)
    c.SlurmSpawner.req_prologue = "\n".join([prepare_work(course), server["setup"]])
    c.MultiSlurmSpawner.daemon_resolver = slurm["addresses"]
    c.Spawner.start_timeout = slurm["wait_minutes"] * 60  # the queue
    c.Spawner.http_timeout = 120  # a cold shared file system
    c.Spawner.poll_interval = 30
    c.Spawner.notebook_dir = f"~/{course['work']}"
    c.Spawner.default_url = "/lab"
    c.Spawner.env_keep = ["LANG", "LC_ALL", "SLURM_CONF"]  # nothing else of the hub's reaches a student
    c.Spawner.environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",  # where the hub finds sbatch
        "JUPYTER_PREFER_ENV_PATH": "1",  # `python3` is this environment's, not a kernel in somebody's home
        "LABKIT_COURSE": course["id"],
        "LABKIT_EXCHANGE": course["exchange"],
    }
    c.Spawner.pre_spawn_hook = prepare_server(hub["instructors"], server["idle_minutes"])


def configure_hub(c: Config, hub: dict) -> None:
    """Where the hub listens, what it keeps, and who may enter."""
    state = Path(hub["state"])
    c.JupyterHub.bind_url = hub["url"]
    if hub["certificate"]:
        c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = hub["certificate"], hub["key"]
    c.JupyterHub.public_url = hub["public"] or hub["url"]
    # Nodes report to the hub, so it listens on all addresses; each request needs a token.
    c.JupyterHub.hub_ip = ""
    c.JupyterHub.hub_port = hub["port"]
    if hub["address"]:
        c.JupyterHub.hub_connect_ip = hub["address"]
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{hub['proxy_port']}"
    c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
    c.JupyterHub.db_url = f"sqlite:///{state / 'jupyterhub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")
    c.JupyterHub.cleanup_servers = False  # a restart of the hub ends nobody's job
    c.JupyterHub.authenticator_class = hub["authenticator"]
    c.Authenticator.allowed_users = {*hub["users"], *hub["instructors"]}
    c.Authenticator.allow_all = not hub["users"]  # everybody whom the authenticator knows
    c.Authenticator.admin_users = set(hub["admins"])


def configure_choices(c: Config, slurm: dict, choices: dict) -> None:
    """What is asked of Slurm: the same for everybody, or what each chooses on a page before the start."""
    there: tuple[Choice, ...] = ()
    if choices["site"]:
        try:
            site = find_site(choices["site"])
            partition = site.partition(slurm["partition"])
            if partition:  # the limits are this one's, so it is the one that is asked for
                qos = [f"--qos={partition.qos}"] if partition.qos else []
                slurm = {**slurm, "partition": partition.name, "options": [*qos, *slurm["options"]]}
            there = offered(site, slurm, choices)
        except ValueError as error:
            raise SystemExit(f"the hub's settings: {error}") from None
    c.SlurmSpawner.req_options = slurm_options(slurm)
    if there:
        c.Spawner.options_form = lambda spawner: form(there, spawner.user_options)
        c.Spawner.options_from_form = form_reader(there)
        c.Spawner.apply_user_options = choice_applier(slurm, there)


def form_reader(there: Sequence[Choice]):
    """What the page sent, as the hub keeps it for the next time."""

    def read(data: Mapping[str, Sequence[str]]) -> dict[str, str]:
        try:
            return from_form(there, data)
        except ValueError as error:
            raise refusal(error) from None

    return read


def choice_applier(slurm: dict, there: Sequence[Choice]):
    """A hook that makes sbatch's options of the choices, which may come from the page or the hub's API."""

    def apply(spawner: MultiSlurmSpawner, told: Mapping[str, object]) -> None:
        try:
            spawner.req_options = slurm_options({**slurm, **chosen(there, told)})
        except ValueError as error:
            raise refusal(error) from None

    return apply


def refusal(error: ValueError) -> HTTPError:
    """The error as the hub's pages and its API show it."""
    refused = HTTPError(400, str(error))
    refused.jupyterhub_message = str(error)
    return refused


def slurm_options(slurm: dict) -> str:
    """The lines of the script with sbatch's options, in the words of its manual."""
    named = {name: slurm[name] for name in ("partition", "account", "time", "nodes", "gpus-per-node", "mem")}
    named["cpus-per-task"] = slurm["cpus"]
    told = [*(f"--{name}={value}" for name, value in named.items() if value not in ("", 0, "0"))]
    return "\n".join(f"#SBATCH {option}" for option in [*told, *slurm["options"]])


def prepare_work(course: dict) -> str:
    """Shell lines that make the user's work folder, with a link to the course's, which only others write."""
    work = f'"$HOME"/{shlex.quote(course["work"])}'
    lines = [f"mkdir -p -m 700 {work}"]
    if course["shared"]:
        lines.append(f"ln -sfn {shlex.quote(course['shared'])} {work}/shared")
    lines.append(f"cd {work}")  # where nbgrader's list of assignments puts what is fetched
    return "\n".join(lines)


def prepare_server(instructors: list[str], idle_minutes: int):
    """A hook that sets what a server is started with, which is not the same for students and instructors."""
    arguments = [
        "--KernelManager.transport=ipc",  # a TCP port of a shared node can be reached by all who are on it
        # A closed browser keeps no allocation: idle kernels and terminals end, then the server and the job.
        *idle_options(idle_minutes),
        "--Application.log_level=WARN",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]

    def prepare(spawner: MultiSlurmSpawner) -> None:
        folders = [HERE / "everybody"]
        if spawner.user.name not in instructors:
            folders.insert(0, HERE / "students")
        spawner.environment = {**spawner.environment, "JUPYTER_CONFIG_PATH": ":".join(map(str, folders))}
        spawner.args = arguments

    return prepare


configure(get_config(), **hub_settings())  # noqa: F821
