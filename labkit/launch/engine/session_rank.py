"""The rank's side of a session: runs cells in a namespace that stays, until the notebook hangs up."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import signal
import sys
import time
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from labkit.launch.engine.forks import forks_end_here
from labkit.launch.engine.frame_values import frame_values
from labkit.launch.engine.post_mortem import PostMortem
from labkit.launch.engine.raised import describe_error
from labkit.launch.engine.rank_shell import RankShell
from labkit.launch.engine.reloading import Reloader
from labkit.launch.engine.streams import flush_output, flush_what_fits, reopen_output
from labkit.launch.handover import results
from labkit.launch.handover.identity import rank_namespace
from labkit.launch.handover.rank_names import Receiver
from labkit.launch.handover.request import end_path, log_path, records_path, result_path
from labkit.launch.handover.reserved import clear_reserved, write_reserved
from labkit.launch.handover.session_wire import connect
from labkit.record.agreement import called_by
from labkit.record.current import current_recorder
from labkit.record.files import write_records
from labkit.record.recorder import Recorder
from labkit.record.state import IDLE, RUNNING


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
        self._shell = RankShell(self.namespace)
        self._receiver = Receiver(self.namespace)
        self._reloader = Reloader()
        self._began = time.monotonic()
        self._failure: BaseException | None = None  # of the last cell
        self._debugger: PostMortem | None = None  # of that failure

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the notebook asks ("cell", "call", "records", "names", "debug"), and say how it went."""
        if message["do"] == "names":
            return {"ok": True, **self._receiver.answer(message["names"], message["objects"])}
        if message["do"] == "records":
            write_records(records_path(self.directory, self.rank), self.recorder, self._began)
            return {"ok": True}
        if message["do"] == "debug":
            return {"ok": True, "text": self._debug(message["line"], message["cells"])}
        if self._failure is not None:
            clear_reserved(end_path(self.directory, self.rank))
            self._failure = self._debugger = None
        self.recorder.restart()
        self._began = time.monotonic()
        self.recorder.enter(RUNNING)
        done = self._cell(message) if message["do"] == "cell" else self._tried(lambda: self._call(message))
        return done | self._called() if done["ok"] else done

    def _cell(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take what comes along, whole or not at all (an interrupt waits), and run the source."""
        if message["names"] is not None:
            try:
                self._receiver.take(message["names"])
            except BaseException as error:
                return {"ok": False, "took": False, "error": self._failed(error)}
        answer = self._tried(lambda: self._run(message["source"], message["file"], message["reload"]))
        if not answer["ok"]:
            answer |= self._shell.until_failure()
        return {**answer, "took": True, "lost": self._receiver.lost()}

    def _tried(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            try:
                with forks_end_here():
                    done = work()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one finds the first being told of
                reopen_output(log_path(self.directory, self.rank))
            flush_output()
            return {"ok": True, **done}
        except BaseException as error:
            flush_what_fits()
            return {"ok": False, "error": self._failed(error)}

    def _run(self, source: str, file: str, reload: bool) -> dict[str, Any]:
        if reload:
            self._reloader.reload()
        try:
            return self._shell.run(source, file)
        finally:
            self._reloader.look()

    def _called(self) -> dict[str, Any]:
        """What the ranks' calls are compared by, where there were any."""
        made = self.recorder
        if not made.entries and not made.new_groups:
            return {}
        return {"called": called_by(self.rank, made.entries, made.new_groups)}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        function, args, kwargs = pickle.loads(message["payload"])
        with forks_end_here():
            value = function(*args, **kwargs)
        results.write(value, result_path(self.directory, self.rank), message["limit"])
        return {}

    def _debug(self, line: str | None, cells: dict[str, tuple[str, str]]) -> str:
        """One command of the debugger, which an interrupt stops."""
        assert self._failure is not None, "the notebook asks ranks that failed"
        if self._debugger is None:
            clear_reserved(end_path(self.directory, self.rank))  # the notebook has it: what ends this is new
            self._debugger = PostMortem(self._failure)
        self.recorder.enter(RUNNING)
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                with forks_end_here():
                    return self._debugger.answer(line, cells)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:
            told = describe_error(error)
            return f"*** {told['type']}" + (f": {told['message']}\n" if told["message"] else "\n")

    def _failed(self, error: BaseException) -> dict[str, Any]:
        """Write it where the agent finds it, in case the other ranks now wait for ever."""
        end = {
            "rank": self.rank,
            "state": "failed",
            "time": time.monotonic(),
            **describe_error(error, frame_values),
        }
        self._failure = error
        state = self.recorder.page.read()
        end |= {"waiting": state.phase == "waiting", "page": msgspec.to_builtins(state, str_keys=True)}
        write_reserved(end_path(self.directory, self.rank), end)
        return end
