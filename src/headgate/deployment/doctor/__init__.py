"""Diagnosis of a deployment on AWS: what is read of it, and what follows."""
