"""What passes between a notebook, the engine and the ranks: requests, payloads, results."""
