"""From a finished call to the spool: redacted, and then one write."""

from __future__ import annotations

import asyncio

import msgspec

from firstchair.gateway.records import CallRecord, encode_record
from firstchair.gateway.redaction import Redactor
from firstchair.gateway.spool import SpoolWriter

LARGE_BYTES = 1 << 20
"""A longer request is redacted and written off the event loop. It becomes a blob when the sink reads it."""


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
        self._spool.append(encode_record(record))
        return record

    def close(self) -> None:
        self._spool.close()
