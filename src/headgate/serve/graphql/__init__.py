"""GraphQL API: schema, types, loaders, limits, engine, HTTP transport and subscriptions."""
