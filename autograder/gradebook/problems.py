"""What can be wrong with a course's folder, and with the name of a student's."""

from __future__ import annotations


class CourseError(RuntimeError):
    """Something about the course's folder has to be put right first; the message says what."""


def student_id_problem(student: str) -> str:
    """Why a folder's name cannot be a student's id; empty when it can."""
    if not student.isprintable() or student != student.strip() or len(student) > 128:
        return f"{student!r}: expected up to 128 printable characters"
    if any(c in student for c in "/\\{}*?[]") or student.startswith("."):
        return f"{student!r}: / \\ {{ }} * ? [ ] and a leading dot cannot be used in a student's id"
    return ""
