"""The messages and services of statestore.proto, as classes.

`statestore.binpb` and `statestore.pyi` are compiled from it by `make proto`. The classes live in a pool of their own:
protobuf knows a name once in a process, and an app that is loaded into the server may well bring its own stubs of the
same services to call others with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_COMPILED: Final = Path(__file__).with_name("statestore.binpb")
_POOL: Final = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file:
    _POOL.Add(_file)
DESCRIPTOR: Final = _POOL.FindFileByName("observability/statestore/v1/statestore.proto")
globals().update(
    {name: message_factory.GetMessageClass(each) for name, each in DESCRIPTOR.message_types_by_name.items()}
)
