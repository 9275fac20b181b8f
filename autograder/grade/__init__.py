"""From a submission to a record: the harness, the evidence, whole classes."""
