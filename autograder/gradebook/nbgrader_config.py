"""nbgrader as this course runs it. A course's own `nbgrader_config.py` is two lines:

    from autograder.gradebook.nbgrader_config import configure
    configure(get_config())

Set anything else (a PostgreSQL `db_url`, late penalties, the exchange) in that file, below them.
"""

from __future__ import annotations

from traitlets.config import Config

COURSE_FILE = '''"""nbgrader's configuration of this course; anything of nbgrader's can be set below."""

from autograder.gradebook.nbgrader_config import configure

c = get_config()  # noqa: F821
configure(c)
'''

# Names in the zips of learning platforms: Moodle's "Ada Byron_123_assignsubmission_file_/x.ipynb", or without
# the slash, and Canvas's "byronada_LATE_123_456_x-1.ipynb". An id is the platform's own number, here 123.
NAMES_IN_ZIPS = (
    r".*/[^/]*?_(?P<student_id>\d+)_(?:assignsubmission_file_/?|\d+_)(?P<file_id>[^/]+?)(?:-\d+)?\.ipynb$"
)


def configure(c: Config) -> None:
    """Replace the steps of nbgrader that would execute a submission, or trust what is in it."""
    from nbgrader.preprocessors import AssignLatePenalties

    from autograder.gradebook.nbgrader_private import show_submissions_with
    from autograder.gradebook.pages import SubmissionPage
    from autograder.gradebook.steps import GradeInSandbox, SafeExporter, SaveGrades
    from labkit.build.release import release_preprocessors

    c.Autograde.exporter_class = SafeExporter
    c.Autograde.sanitize_preprocessors = [GradeInSandbox]
    c.Autograde.autograde_preprocessors = [SaveGrades, AssignLatePenalties]
    c.Autograde.pre_convert_hook = "autograder.gradebook.course.without_links"
    c.FileNameCollectorPlugin.named_regexp = NAMES_IN_ZIPS
    c.GenerateAssignment.preprocessors = release_preprocessors()
    c.GenerateFeedback.exporter_class = SubmissionPage
    show_submissions_with(SubmissionPage)
