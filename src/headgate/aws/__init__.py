"""AWS: the functions of the lifecycle and of workflows as Lambda handlers; Step Functions in the engine's place."""
