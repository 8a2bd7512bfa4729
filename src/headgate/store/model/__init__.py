"""Store model: schema, values, conditions, requests, cursors and validation, shared by every backend."""
