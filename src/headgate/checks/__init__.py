"""Checks: what Headgate measures on datasets itself, on a schedule and after the runs that write them."""
