"""REST API under /api/v1, and the routes of user apps."""
