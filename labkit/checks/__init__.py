"""What each exercise must show, and how a student's work is run and judged."""
