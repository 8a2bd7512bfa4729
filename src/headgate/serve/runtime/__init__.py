"""Runtime building blocks of the server: thread pool, concurrency gate, watch hub, log tail, merged metrics."""
