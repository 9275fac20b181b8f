"""Where students' code runs: confined, with data going in and data coming out."""
