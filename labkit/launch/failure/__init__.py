"""Why a job failed: the evidence as data in, sentences out."""
