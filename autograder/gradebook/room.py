"""Whether a course can be written to: else what sandboxes find, in hours perhaps, would be thrown away."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from autograder.grade.records import FOLDER
from autograder.gradebook.problems import CannotGoOn, told

ENOUGH = 2**20  # bytes: more than a record has
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)  # by another program: not for long


def check_records(root: Path, lesson: str) -> None:
    """CannotGoOn where a record could not be written. What is tried leaves nothing."""
    folder = root / FOLDER / lesson
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=".room-") as file:
            file.write(bytes(ENOUGH))
            file.flush()
            os.fsync(file.fileno())  # some file systems, NFS among them, tell of a full disk only then
    except OSError as problem:
        raise CannotGoOn(f"no more is graded, as nothing can be kept in {folder}: {told(problem)}") from None


def check_gradebook(db_url: str) -> None:
    """CannotGoOn where nothing could be written to a gradebook in a file. One on a server is not tried: what
    it refuses it may take a moment later.
    """
    engine = create_engine(db_url)
    try:
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
                connection.exec_driver_sql(f"PRAGMA user_version = {version}")  # a page, and so a journal
                connection.rollback()
    except DBAPIError as problem:
        if getattr(problem.orig, "sqlite_errorcode", 0) & 0xFF not in _IN_USE:
            raise CannotGoOn(f"no more is graded: {told(problem)}") from None
    finally:
        engine.dispose()
