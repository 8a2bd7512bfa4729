"""Hashes: the algorithms that both query languages know, by the names that Step Functions gives them."""

from __future__ import annotations

import hashlib
from typing import Final

ALGORITHMS: Final = {
    "MD5": hashlib.md5,
    "SHA-1": hashlib.sha1,
    "SHA-256": hashlib.sha256,
    "SHA-384": hashlib.sha384,
    "SHA-512": hashlib.sha512,
}
