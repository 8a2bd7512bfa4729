"""Pages of operating a server: events, alerts, audit log, settings and the server itself."""
