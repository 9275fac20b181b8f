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

# Where autograder.gradebook.uploads puts what it takes out of a learning platform's archives.
EXTRACTED = r".*/(?P<student_id>[^/]+)/(?P<file_id>[^/]+)\.ipynb$"


def configure(c: Config) -> None:
    """Replace the steps of nbgrader that would execute a submission, or trust what is in it."""
    from nbgrader.preprocessors import AssignLatePenalties

    from autograder.gradebook.nbgrader_private import show_submissions_with
    from autograder.gradebook.pages import SubmissionPage
    from autograder.gradebook.steps import GradeInSandbox, SafeExporter, SaveGrades
    from autograder.gradebook.uploads import UploadExtractor
    from labkit.build.release import release_preprocessors

    c.Autograde.exporter_class = SafeExporter
    c.Autograde.sanitize_preprocessors = [GradeInSandbox]
    c.Autograde.autograde_preprocessors = [SaveGrades, AssignLatePenalties]
    c.Autograde.pre_convert_hook = "autograder.gradebook.course.without_links"
    c.ZipCollectApp.extractor_plugin = UploadExtractor
    c.FileNameCollectorPlugin.named_regexp = EXTRACTED
    c.GenerateAssignment.preprocessors = release_preprocessors()
    c.GenerateFeedback.exporter_class = SubmissionPage
    show_submissions_with(SubmissionPage)
