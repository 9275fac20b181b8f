"""What the job runs on its first node: `python -m labkit.slurm.lab_node --root FOLDER --idle MINUTES`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import click

from labkit.jupyter.lab import CannotStart, own_port, page_of_lab, run, tunnel
from labkit.settings import SettingsError
from labkit.slurm import lab_files
from labkit.slurm.commands import SlurmError, node_address
from labkit.slurm.site import current_site


@click.command()
@click.option("--root", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--idle", type=float, default=30.0)
def main(root: Path, idle: float) -> None:
    """Run JupyterLab until its job or its use ends, and leave how to reach it in a private file."""
    os.umask(0o077)
    job = os.environ["SLURM_JOB_ID"]
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        site = current_site()
        around = os.environ.get("LABKIT_JUPYTER_PATH", "")  # asked for in a JupyterLab that can pass pages on
        ip = "127.0.0.1" if site.ssh_to_nodes and not around else "0.0.0.0"
        below = f"proxy/absolute/{node_address(node)}:{{port}}/" if around else ""
        base = f"{around}{below}" or "/"
        reached = {**os.environ, **({"SLURM_SUBMIT_HOST": site.login} if site.login else {})}

        def tell(port: int, token: str) -> None:
            page = page_of_lab(token)
            url = f"http://127.0.0.1:{port}{base.format(port=port)}{page}"
            through = f"{os.environ['LABKIT_JUPYTER']}{below.format(port=port)}{page}" if around else ""
            line = tunnel(ip, port, reached, node)
            cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
            connection = lab_files.Connection(job, node, port, url, line, idle, through, cluster)
            written = lab_files.write(connection)
            print(f"JupyterLab is up; how to reach it is in {written}", flush=True)

        first = own_port(site.ports, os.getuid())
        sys.exit(run(port=first, root=root, ip=ip, browser=False, idle=idle, base=base, tell=tell))
    except (CannotStart, SettingsError, SlurmError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        with contextlib.suppress(SlurmError):  # a folder that cannot be had was told above
            lab_files.path_of(job).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
