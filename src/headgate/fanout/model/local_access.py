"""Local access: what a fan-out that was sent through the API may use on a worker's machine."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.file_roots import FileRoots

# Package name for "any handler", which an operator names on the command line.
ANY: Final = "*"


class LocalAccess(Struct, frozen=True):
    """Handlers may come from modules in `folders`, and from `packages`; input files from `files` (None: anywhere).

    Modules below `denied` are refused although they are in a folder.
    """

    folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    files: FileRoots | None = None

    @property
    def is_any_handler(self) -> bool:
        """Whether every function that can be imported may be a handler."""
        return ANY in self.packages


# No module may be a handler; a process of the user's own reads any file.
NO_ACCESS: Final = LocalAccess()
ANY_HANDLER: Final = LocalAccess(packages=(ANY,))
