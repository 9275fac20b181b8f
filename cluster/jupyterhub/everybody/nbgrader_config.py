"""nbgrader for everybody on the hub: where the exchange is, and which course it is about."""

import os

c = get_config()  # noqa: F821
if os.environ.get("LABKIT_EXCHANGE"):
    c.Exchange.root = os.environ["LABKIT_EXCHANGE"]
if os.environ.get("LABKIT_COURSE"):
    c.CourseDirectory.course_id = os.environ["LABKIT_COURSE"]
