"""What a node with GPUs can show of the whole course, solutions included: `make gpu`, and its bundle."""
