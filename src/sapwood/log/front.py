"""Making a log's new start durable, and only then deleting what lies before it."""

from __future__ import annotations

import asyncio
import errno

from sapwood.disk import Disk
from sapwood.log.compact import Compactor
from sapwood.log.errors import LogClosed
from sapwood.log.replay import LogFiles
from sapwood.log.snapshot import SnapshotWriter
from sapwood.log.state import Start
from sapwood.log.syncing import LogSync


class Front:
    def __init__(
        self, files: LogFiles, snapshots: SnapshotWriter, sync: LogSync, compactor: Compactor
    ) -> None:
        self._files = files
        self._snapshots = snapshots
        self._sync = sync
        self._compactor = compactor

    def store(self, synced: asyncio.Future[int]) -> asyncio.Future[None]:
        """Resolves when a crash can't undo that the log starts where it does now.

        With flush=os the log itself may not be durable up to there, and it must never be found to
        end before it starts: so first it is `synced`.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def durable(synced: asyncio.Future[int]) -> None:
            error = synced.exception()
            if error is None and self._compactor.closed:
                error = LogClosed(f"{self._files.directory} was closed")
            if error is not None:
                _settle(done, error)
                return
            self._snapshots.write(self._sync.durable)
            secure = self._snapshots.make_durable()
            start = self._files.start()
            written = self._files.state.change(first=secure, **start)
            written.add_done_callback(lambda it: self._stored(start, it, done))

        synced.add_done_callback(durable)
        return done

    def _stored(
        self, start: Start, written: asyncio.Future[None], done: asyncio.Future[None]
    ) -> None:
        files, closed = self._files, self._compactor.closed
        error = written.exception()
        if error is None:
            # Not before: after a crash the log may start where it did, and a snapshot must know
            # all epochs from there on. The log may have been reset meanwhile.
            stored = min(start["start_offset"], files.start_offset)
            files.ledger.epochs.advance(stored)
            files.ledger.transactions.forget_before(stored)
        if error is None and not closed and not self._compactor.swapping:
            gone = files.segments.remove_before(start["first_segment"])
            for segment in gone:
                segment.release()
            paths = [path for it in gone for path in (it.index_path, it.path)]
            files.disk.offload(lambda: _remove(files.disk, paths)).add_done_callback(ignore)
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC and not closed:
            # Deleting needs a few bytes itself. What can be computed anew, of segments that are
            # about to go, makes room for them; `retain` will try again.
            files.segments.active.give_room_back()
            for segment in files.segments.closed:
                if segment.end_offset <= start["first_segment"]:
                    files.disk.remove(segment.index_path)
        _settle(done, error)


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        disk.remove(path)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def ignore(future: asyncio.Future[None]) -> None:
    """For what will be tried again anyway."""
    if not future.cancelled():
        future.exception()
