"""The nbgrader side: course folders, release, formgrader, feedback, reports."""
