"""AWS: the functions of the lifecycle as Lambda handlers, and Step Functions in the place of the durable engine."""
