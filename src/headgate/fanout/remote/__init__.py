"""Remote: workers that receive chunks from a queue, SQS, and dead letters."""
