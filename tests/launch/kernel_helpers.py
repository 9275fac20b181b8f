"""A real Jupyter kernel for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager


class Kernel:
    """A Jupyter kernel, and what its cells show."""

    def __init__(self, directory: Path) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel(cwd=str(directory))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(
        self, source: str, interrupt_when: str = "", answers: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """The outputs of a cell as a notebook would save them; `interrupt_when` an output has this text.

        answers: what the person types when the cell asks; None: nobody can be asked.
        """
        shown: list[dict[str, Any]] = []
        typed = iter(answers or ())

        def hook(message: dict[str, Any]) -> None:
            nonlocal interrupt_when
            kind, content = message["msg_type"], message["content"]
            if kind == "update_display_data":
                shown[:] = [o for o in shown if o.get("transient") != content["transient"]]
            if kind in ("display_data", "update_display_data", "execute_result", "stream", "error"):
                shown.append({"kind": kind, **content})
            if interrupt_when and kind != "execute_input" and interrupt_when in str(content):
                interrupt_when = ""
                self.manager.interrupt_kernel()

        self.client.execute_interactive(
            source,
            timeout=60,
            output_hook=hook,
            allow_stdin=answers is not None,
            stdin_hook=lambda _: self.client.input(next(typed)),
        )
        return shown

    def text(self, source: str, **options: Any) -> str:
        """The same as one text: plain representations, streams and tracebacks."""
        parts = []
        for output in self.run(source, **options):
            parts.append(output.get("text") or "\n".join(output.get("traceback", [])))
            parts.append(output.get("data", {}).get("text/plain", ""))
        return "\n".join(part for part in parts if part)

    def engine_directory(self) -> str:
        return self.text("from labkit.launch import client\nprint(client.engine().directory)").strip()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
