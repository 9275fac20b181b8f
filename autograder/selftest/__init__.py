"""Tries the checks themselves: what is right must earn everything, and what is wrong must lose points."""
