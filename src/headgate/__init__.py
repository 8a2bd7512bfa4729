"""Headgate: a control plane for data pipelines. Nothing flows until it is safe."""

__all__ = ("__version__",)


def __getattr__(name: str) -> str:
    # Reading package metadata takes longer than importing this package, and few who import it ask.
    if name == "__version__":
        from importlib.metadata import version

        return version("headgate")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
