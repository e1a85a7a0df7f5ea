"""From a finished call to the spool: redacted, and then one write."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from firstchair.gateway.records import CallRecord, encode_record
from firstchair.gateway.redaction import Redactor
from firstchair.gateway.spool import SpoolWriter

LARGE_BYTES = 1 << 20
"""A longer request is redacted and written off the event loop. It becomes a blob when the sink reads it."""
_MOST = (1 << 63) - 1
"""The largest whole number that record and database can hold."""


class Recorder:
    """Writes the records of one worker."""

    def __init__(self, spool: SpoolWriter, redactor: Redactor | None, *, keep_content: bool):
        self._spool, self._redactor, self._keep_content = spool, redactor, keep_content

    async def write(self, record: CallRecord) -> CallRecord:
        """Keep ``record``; as it was kept. When this returns it survives the death of the process.

        A record that cannot be written is counted by the spool, and the call goes on.
        """
        if not self._keep_content:
            record = msgspec.structs.replace(record, request=b"", answer=None, tokens=None)
        if len(record.request) > LARGE_BYTES:
            return await asyncio.to_thread(self._keep, record)
        return self._keep(record)

    def _keep(self, record: CallRecord) -> CallRecord:
        if self._redactor is not None:
            record = self._redactor.record(record)
        self._spool.append(encoded_record(record))
        return record

    def close(self) -> None:
        self._spool.close()


def encoded_record(record: CallRecord) -> bytes:
    """The bytes of a record, whatever clients and providers have put into it.

    Half a surrogate pair becomes ``?`` and a number of more than 64 bits the largest there is; what is nested too
    deep is left out.
    """
    try:
        return encode_record(record)
    except (UnicodeError, OverflowError, RecursionError, TypeError, ValueError):
        pass
    try:
        return msgspec.msgpack.encode(_writable(record))
    except RecursionError:
        bare = msgspec.structs.replace(record, answer=None, tokens=None, raw_usage=None)
        return msgspec.msgpack.encode(_writable(bare))


def _writable(value: Any) -> Any:
    """``value`` in what a record can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | float | bytes) or value is None:
        return value
    if isinstance(value, int):
        return max(-_MOST, min(value, _MOST))
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    if isinstance(value, msgspec.Struct):
        fields = {name: _writable(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return fields if tag is None else {value.__struct_config__.tag_field: tag, **fields}
    return str(value)
