"""Collects a student's code: cells, definitions, and what they need."""
