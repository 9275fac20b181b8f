"""The Jupyter server in whose terminal we are, if it can pass on pages of others (jupyter-server-proxy)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Jupyter:
    """address: what the browser has before the paths of its pages, or how to find it; path: its path."""

    address: str
    path: str


def jupyter_around(environment: Mapping[str, str]) -> Jupyter | None:
    """The server, as its terminals' environment tells; None where there is none that could pass pages on."""
    if find_spec("jupyter_server_proxy") is None:
        return None
    if path := environment.get("JUPYTERHUB_SERVICE_PREFIX"):
        return Jupyter(environment.get("JUPYTERHUB_PUBLIC_URL") or f"the hub's address, then {path}", path)
    if address := environment.get("JUPYTER_SERVER_URL"):
        return Jupyter(address, urlsplit(address).path)
    return None
