"""Message classes of statestore.proto.

`make proto` compiles `statestore.binpb` and `proto.pyi`. The classes live in a descriptor pool of their own, because
protobuf allows a name once per pool and a user's app may bring its own stubs of the same services.
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
