"""Probes: readiness checks that Headgate makes itself, once for all pipelines that read them."""
