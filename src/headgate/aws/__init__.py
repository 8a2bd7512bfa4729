"""AWS: Lambda handlers of the pipeline lifecycle and of workflows, with Step Functions as the engine."""
