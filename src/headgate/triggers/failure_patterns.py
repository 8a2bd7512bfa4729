"""Failure patterns: derive the failure category from a job's error message.

Services report FAILED for a bug and for a lost machine alike; the message separates them. An unknown message counts as
transient: one more attempt costs less than a missed period.
"""

from __future__ import annotations

import re
from typing import Final

from headgate.triggers.contract import FailureCategory

_TIMEOUT: Final = re.compile(
    r"timed out|time[- ]?out exceeded|TimeoutException|Sandbox\.Timedout|exceeded .{0,40}time limit", re.I
)
# Lost machines and capacity; such messages may quote what the code was doing.
_PASSING: Final = re.compile(
    r"throttl|rate exceeded|slow ?down|too many requests|spot|preempt|executor lost|lost executor|executorlostfailure|"
    r"connection (?:reset|refused|closed)|broken pipe|service unavailable|internal (?:service |server )?error|"
    r"insufficient capacity|resource unavailable|concurrent runs|outofmemory|out of memory|no space left",
    re.I,
)
_CODE: Final = re.compile(
    r"\b(?:Syntax|Indentation|Name|Type|Value|Key|Index|Attribute|Import|ModuleNotFound|ZeroDivision|Assertion|"
    r"NotImplemented|Unicode\w*|Recursion)Error\b|"
    r"\b(?:NullPointer|ClassNotFound|ClassCast|NoSuchMethod|IllegalArgument|IllegalState|NumberFormat|Arithmetic|"
    r"Analysis|Parse)(?:Exception|Error)\b|"
    r"\bNoClassDefFoundError\b|\bRuntime\.(?:ImportModuleError|HandlerNotFound|UserCodeSyntaxError|InvalidEntrypoint)\b|"
    r"\bAccessDenied\w*|\bnot authorized to perform\b|\bPermission denied\b|\bUnauthorized\w*|"
    r"\bEntityNotFoundException\b|\bNoSuch(?:Key|Bucket)\b|\bFileNotFound\w*|\bNoSuchFile\w*|"
    r"\bTable or view not found\b|\bTABLE_OR_VIEW_NOT_FOUND\b|\bPath does not exist\b|\bUNRESOLVED_COLUMN\b|"
    r"\bsyntax error\b|\binvalid (?:argument|parameter|input)\b",
    re.I,
)


def category_of(text: str) -> FailureCategory:
    """Return the failure category of a message."""
    if _TIMEOUT.search(text):
        return FailureCategory.TIMEOUT
    if _PASSING.search(text):
        return FailureCategory.TRANSIENT
    return FailureCategory.PERMANENT if _CODE.search(text) else FailureCategory.TRANSIENT
