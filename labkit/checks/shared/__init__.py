"""What the checks of several lessons use."""
