"""Local: the chunk worker of this machine and its child processes."""
