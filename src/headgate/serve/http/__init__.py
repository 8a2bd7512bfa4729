"""HTTP layer: connections, limits, middleware, API operations, problem responses and OpenAPI."""
