"""Worker: claims and runs activities, polls the store, and drives the engine of one process."""
