"""Costs of a deployment on AWS: dated prices, measured requests, and the bill of a month."""
