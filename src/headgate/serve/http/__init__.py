"""HTTP layer: listener, middleware, API operations, problem responses and OpenAPI."""
