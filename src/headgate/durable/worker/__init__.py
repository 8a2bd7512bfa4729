"""Worker: say here what this part is for."""
