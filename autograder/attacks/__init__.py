"""Submissions that try to win points, to see what they may not, or to harm the machine."""
