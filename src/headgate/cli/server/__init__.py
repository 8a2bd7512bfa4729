"""Commands that run and inspect a server: up, demo, watchdog, reload, doctor and init."""
