"""Grading a whole class: what drives `grade` and `gradebook`, and stands above both."""
