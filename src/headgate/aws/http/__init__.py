"""HTTP functions: the HTTP application behind API Gateway."""
