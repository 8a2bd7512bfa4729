"""Overview of all pipelines: which need attention, and the current status of each."""
