"""Documents: reads definitions written in JSON or YAML, and finds those in folders and CloudFormation templates."""
