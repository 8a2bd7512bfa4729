"""Commands that run, set up and inspect an installation: up, watchdog, doctor, init, keys and tables."""
