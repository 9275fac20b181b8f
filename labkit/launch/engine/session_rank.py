"""The rank's side of a session: runs cells in a namespace that stays, until the notebook hangs up."""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import pickle
import signal
import sys
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from labkit.launch.engine.raised import describe_error
from labkit.launch.handover import results
from labkit.launch.handover.notebook_names import Receiver, rank_namespace
from labkit.launch.handover.request import end_path, records_path, result_path
from labkit.launch.handover.reserved import clear_reserved, write_reserved
from labkit.launch.handover.session_wire import connect
from labkit.record.current import current_recorder
from labkit.record.files import write_records
from labkit.record.recorder import Recorder
from labkit.record.state import IDLE, RUNNING

_LONGEST_VALUE = 20000  # characters of a cell's last expression


def serve(directory: str) -> None:
    """Answer the notebook's messages until it closes the connection. Runs as the function of a job."""
    answer_on(connect(Path(directory)), directory)


def answer_on(connection: Connection, directory: str) -> None:
    """Do as the messages of this connection say, until it is closed."""
    recorder = current_recorder()
    assert recorder is not None, "a session records"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = _Rank(Path(directory), recorder)
    connection.send_bytes(json.dumps({"rank": rank.rank, "pid": os.getpid()}).encode())
    recorder.enter(IDLE)
    while True:
        try:
            message = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        answer = json.dumps(rank.answer(message)).encode()
        recorder.enter(IDLE)  # before the notebook hears of it, and may look
        connection.send_bytes(answer)


class _Rank:
    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.directory, self.recorder, self.rank = directory, recorder, recorder.rank
        sys.modules["__main__"] = types.ModuleType("__main__")
        self.namespace = rank_namespace()
        self.namespace |= {"__builtins__": builtins, "rank": self.rank, "world_size": dist.get_world_size()}
        self._receiver = Receiver(self.namespace)
        self._began = time.monotonic()
        self._failed_before = False

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the notebook asks ("cell", "call" or "records"), and say how it went."""
        if message["do"] == "records":
            write_records(records_path(self.directory, self.rank), self.recorder, self._began)
            return {"ok": True}
        if self._failed_before:
            clear_reserved(end_path(self.directory, self.rank))
            self._failed_before = False
        self.recorder.restart()
        self._began = time.monotonic()
        self.recorder.enter(RUNNING)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return {"ok": True, **(self._cell(message) if message["do"] == "cell" else self._call(message))}
        except BaseException as error:
            return {"ok": False, "error": self._failed(error)}
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.stdout.flush()
            sys.stderr.flush()

    def _cell(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["names"] is not None:
            self._receiver.take(message["names"])
        value = run_cell(message["source"], message["file"], self.namespace)
        if value is None:
            return {}
        self.namespace["_"] = value
        return {"value": repr(value)[:_LONGEST_VALUE], "html": _html(value)}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        function, args, kwargs = pickle.loads(message["payload"])
        results.write(function(*args, **kwargs), result_path(self.directory, self.rank), message["limit"])
        return {}

    def _failed(self, error: BaseException) -> dict[str, Any]:
        """Write it where the agent finds it, in case the other ranks now wait for ever."""
        end = {"rank": self.rank, "state": "failed", "time": time.monotonic(), **describe_error(error)}
        self._failed_before = True
        state = self.recorder.page.read()
        end |= {"waiting": state.phase == "waiting", "page": msgspec.to_builtins(state, str_keys=True)}
        write_reserved(end_path(self.directory, self.rank), end)
        return end


def run_cell(source: str, file: str, namespace: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last expression, None when it ends otherwise or in a semicolon."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    last: ast.Expression | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = tree.body.pop()
        assert isinstance(expression, ast.Expr)
        last = ast.Expression(expression.value)
    exec(compile(tree, file, "exec"), namespace)
    value = eval(compile(last, file, "eval"), namespace) if last is not None else None
    return None if source.rstrip().endswith(";") else value


def _html(value: Any) -> str:
    try:
        html = value._repr_html_()
    except Exception:
        return ""
    return html if isinstance(html, str) and len(html) <= _LONGEST_VALUE else ""
