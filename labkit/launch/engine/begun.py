"""Why a job could not be begun, for the person who launched it."""

from __future__ import annotations

import errno
import os

from labkit.launch.failure.errors import Diagnosis

_SHARED = "/dev/shm"  # where Linux keeps semaphores, of which every rank has some
_LITTLE = 1 << 20  # bytes


def not_begun(error: BaseException) -> Diagnosis:
    """The diagnosis of a job that ended with an error of the launcher's own, or of the machine's."""
    summary = f"the job could not be started: {type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        free = _free(_SHARED)
        if free < _LITTLE:
            summary = f"the job could not be started: {_SHARED} has no room ({free >> 10} KiB free)"
            hint = "remove what is left there; a container gets more with --shm-size 1g or --ipc=host, say"
            return Diagnosis("infrastructure", summary, hint=hint)
        hint = "free some space on the disk of the temporary directory, or set TMPDIR to one with room"
        return Diagnosis("infrastructure", summary, hint=hint)
    return Diagnosis("infrastructure", summary, hint="launch again; your code is not to blame")


def _free(path: str) -> int:
    """Bytes that are free there."""
    try:
        found = os.statvfs(path)
    except OSError:
        return _LITTLE
    return found.f_bavail * found.f_frsize
