"""Headgate side by side with other durable-execution engines, each as its makers ship it, on this machine."""
