"""Commands that deploy to AWS: the package of the functions, and Terraform."""
