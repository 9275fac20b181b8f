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


def configure(c: Config) -> None:
    """Replace the steps of nbgrader that would execute a submission, or trust what is in it."""
    from autograder.gradebook.collecting import Collect
    from autograder.gradebook.feedback_page import FeedbackPage, GetGradesAndChanges
    from autograder.gradebook.handed_in import time_if_known
    from autograder.gradebook.nbgrader_private import (
        put_only_pages_into_feedback,
        read_times_with,
        show_submissions_with,
    )
    from autograder.gradebook.pages import SubmissionPage
    from autograder.gradebook.penalties import ExportWithPenalties, LatePenalties, PresentPenalties
    from autograder.gradebook.steps import GradeInSandbox, SafeExporter, SaveGrades
    from autograder.gradebook.uploads import EXTRACTED, UploadExtractor
    from labkit.build.release import release_preprocessors

    c.Autograde.exporter_class = SafeExporter
    c.Autograde.sanitize_preprocessors = [GradeInSandbox]
    c.Autograde.autograde_preprocessors = [SaveGrades, LatePenalties]
    c.Autograde.pre_convert_hook = "autograder.gradebook.course.without_links"
    c.ExchangeFactory.collect = Collect
    c.ZipCollectApp.extractor_plugin = UploadExtractor
    c.ExportApp.plugin_class = ExportWithPenalties
    c.FileNameCollectorPlugin.named_regexp = EXTRACTED
    c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".txt"]
    c.GenerateAssignment.preprocessors = release_preprocessors()
    c.GenerateFeedback.exporter_class = FeedbackPage
    c.GenerateFeedback.preprocessors = [PresentPenalties, GetGradesAndChanges]
    put_only_pages_into_feedback()
    show_submissions_with(SubmissionPage)
    read_times_with(time_if_known)
