"""From a lesson's source to the notebook a student opens.

solutions/NN_name.py  --read_lesson-->  Lesson  --instructor_notebook-->  with solutions and nbgrader's marks
                                                --student_notebook-->     as released, through nbgrader
"""

from labkit.build.course import (
    Difference,
    build,
    compare,
    find_lessons,
    instructor_notebook,
    student_notebook,
)
from labkit.build.markup import Lesson, LessonError, read_lesson

__all__ = [
    "Difference",
    "Lesson",
    "LessonError",
    "build",
    "compare",
    "find_lessons",
    "instructor_notebook",
    "read_lesson",
    "student_notebook",
]
