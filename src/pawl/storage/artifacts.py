"""Content-addressed bytes: immutable files named by their SHA-256, written so that a name never lies.

A write has two halves, because a promise (the settlement intent) must be durable between them:
``stage`` writes and syncs a temporary file in the target directory and tells digest and size;
``publish`` renames it and syncs the directory. Both are done by threads that take everything waiting at once, so
a hundred settlements share their directory syncs and their wake-ups.

Bytes are checked against their name at every read, and before a file that is already there is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from pawl import failpoints
from pawl.errors import ArtifactAltered, ArtifactMissing, StorageError
from pawl.ids import new_id
from pawl.storage.faults import from_system

Item = TypeVar("Item")
Answer = TypeVar("Answer")

CHUNK_BYTES = 1024 * 1024
_TEMPORARY = ".tmp-"
_STAGE_THREADS = 4
_STAGE_BATCH_MAX = 16
_PUBLISH_BATCH_MAX = 512
_DURABLE_REMEMBERED_MAX = 100_000


class Artifact(NamedTuple):
    """Bytes by their name: SHA-256 in lower-case hexadecimal, and length."""

    sha256: str
    size_bytes: int


EMPTY = Artifact(hashlib.sha256(b"").hexdigest(), 0)


class Staged(NamedTuple):
    """Bytes that are on the disk under a temporary name, or (``temporary`` None) under their own already."""

    artifact: Artifact
    temporary: str | None


class Source(NamedTuple):
    """What to stage: bytes at hand, or a file of which at most ``limit_bytes`` are taken: by its path, or from a
    descriptor, which whoever stages it closes."""

    data: bytes | None
    path: str | None
    limit_bytes: int
    descriptor: int | None = None


class ArtifactStore:
    """The artifacts of one home. ``start`` and ``close`` belong to the event loop; reading needs neither."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._durable: set[str] = set()
        self._stages: _Pool[Source, Staged] = _Pool("stage", _STAGE_THREADS, _STAGE_BATCH_MAX, self._stage_all)
        self._publishes: _Pool[Staged, None] = _Pool("publish", 1, _PUBLISH_BATCH_MAX, self._publish_all)

    def start(self) -> None:
        """Start the threads."""
        self._stages.start()
        self._publishes.start()

    async def close(self) -> None:
        """Finish what is waiting and end the threads. Twice is harmless."""
        await self._stages.close()
        await self._publishes.close()

    def path(self, sha256: str) -> str:
        """Where the bytes of this name lie."""
        return os.path.join(self.root, sha256)

    def stage(self, data: bytes) -> asyncio.Future[Staged]:
        """Write and sync bytes under a temporary name. Raises ``disk_full`` and the like."""
        return self._stages.submit(Source(data, None, len(data)))

    def stage_file(self, path: str, limit_bytes: int) -> asyncio.Future[Staged]:
        """Copy at most ``limit_bytes`` of a file under a temporary name, synced. A missing file is empty bytes."""
        if limit_bytes == 0 and EMPTY.sha256 in self._durable and self._present(EMPTY):
            return _done(Staged(EMPTY, None))  # most programs leave one stream empty: no thread for that
        return self._stages.submit(Source(None, path, limit_bytes))

    def stage_open(self, descriptor: int, limit_bytes: int) -> asyncio.Future[Staged]:
        """The same from the beginning of a file that is open. The caller may close it at any time, and nobody else may
        read from it meanwhile."""
        own = os.dup(descriptor)
        try:
            return self._stages.submit(Source(None, None, limit_bytes, own))
        except BaseException:
            os.close(own)
            raise

    def publish(self, staged: Staged) -> asyncio.Future[None]:
        """Give staged bytes their name, durably."""
        return _done(None) if staged.temporary is None else self._publishes.submit(staged)

    def discard(self, *staged: Staged | None) -> None:
        """Forget staged bytes that nobody will publish."""
        for each in staged:
            if each is not None and each.temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(each.temporary)

    def open_verified(self, artifact: Artifact) -> BinaryIO:
        """Open bytes whose digest was just checked, at their start. Blocks while it reads them through.

        Raises ``artifact_missing`` or ``artifact_altered``.
        """
        path = self.path(artifact.sha256)
        try:
            file = open(path, "rb")  # noqa: SIM115 (handed to the caller)
        except FileNotFoundError:
            raise ArtifactMissing(
                f"cannot read the output: {path} is missing", sha256=artifact.sha256, path=path
            ) from None
        except OSError as error:
            raise from_system(error, path) from error
        try:
            found = _digest(file)
            if found != artifact:
                raise ArtifactAltered(
                    f"cannot read the output: the bytes in {path} are not those that were stored "
                    f"({found.size_bytes} bytes of {artifact.size_bytes})",
                    sha256=artifact.sha256, path=path, found_sha256=found.sha256, found_bytes=found.size_bytes,
                )  # fmt: skip
            file.seek(0)
            return file
        except BaseException:
            file.close()
            raise

    def holds(self, artifact: Artifact) -> bool:
        """Whether the bytes are there and match. Blocks while it reads them through."""
        try:
            self.open_verified(artifact).close()
        except (ArtifactMissing, ArtifactAltered):
            return False
        return True

    def sweep(self) -> int:
        """Remove temporary files that a dead daemon left. Only before this one stages any."""
        removed = 0
        for entry in os.scandir(self.root):
            if entry.name.startswith(_TEMPORARY):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
                    removed += 1
        return removed

    # --- on the threads -------------------------------------------------------------------------------------

    def _stage_all(self, sources: list[Source]) -> list[Any]:
        return [_outcome(self._stage_one, source) for source in sources]

    def _stage_one(self, source: Source) -> Staged:
        if source.descriptor is None:
            return self._stage_from(source)
        try:
            return self._stage_from(source)
        finally:
            os.close(source.descriptor)

    def _stage_from(self, source: Source) -> Staged:
        try:
            source = _at_hand(source)
        except OSError as error:
            raise from_system(error, str(source.path)) from error
        if source.data is not None and len(source.data) <= CHUNK_BYTES:
            artifact = Artifact(hashlib.sha256(source.data).hexdigest(), len(source.data))
            if artifact.sha256 in self._durable and self._present(artifact):
                return Staged(artifact, None)
        temporary = os.path.join(self.root, _TEMPORARY + new_id())
        try:
            return _write(temporary, source)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                raise from_system(error, temporary) from error
            raise

    def _present(self, artifact: Artifact) -> bool:
        """Whether the file is there and right. Only small ones are asked about: large ones are simply replaced."""
        with contextlib.suppress(StorageError):
            self.open_verified(artifact).close()
            return True
        return False

    def _publish_all(self, batch: list[Staged]) -> list[Any]:
        answers = [_outcome(self._rename, staged) for staged in batch]
        moved = [staged for staged, answer in zip(batch, answers, strict=True) if answer is True]
        if moved:
            failpoints.hit("artifact.after_rename")
            try:
                sync_directory(self.root)
            except OSError as error:
                fault = from_system(error, self.root)
                return [fault if answer is True else answer for answer in answers]
            if len(self._durable) > _DURABLE_REMEMBERED_MAX:
                self._durable.clear()
            self._durable.update(staged.artifact.sha256 for staged in moved)
        return [answer if isinstance(answer, Exception) else None for answer in answers]

    def _rename(self, staged: Staged) -> bool:
        if staged.temporary is None:
            return False
        failpoints.hit("artifact.before_rename")
        final = self.path(staged.artifact.sha256)
        try:
            os.replace(staged.temporary, final)
        except FileNotFoundError as error:
            if self.holds(staged.artifact):  # an earlier try got this far
                return True
            raise from_system(error, final) from error
        except OSError as error:
            raise from_system(error, final) from error
        return True


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _at_hand(source: Source) -> Source:
    """A small or missing file as bytes, so that what is there already is found before anything is written."""
    if source.data is not None:
        return source
    try:
        found = os.lstat(source.path) if source.path is not None else os.fstat(source.descriptor or 0)
        if min(found.st_size, source.limit_bytes) > CHUNK_BYTES:
            return source
        return Source(b"".join(_read(source)), None, 0)
    except (FileNotFoundError, NotADirectoryError):
        return Source(b"", None, 0)


def _write(temporary: str, source: Source) -> Staged:
    """Write the source under a temporary name and sync it, hashing on the way."""
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        chunks = [source.data] if source.data is not None else _read(source)
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
        failpoints.hit("artifact.before_sync")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Staged(Artifact(digest.hexdigest(), size), temporary)


def open_plain(path: str) -> io.FileIO:
    """Open a file that a program may have put something else in the place of: a link, a pipe that blocks whoever opens
    it, a device without end. Anything but a plain file is not there. Raises FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, "it is no plain file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no plain file", path)
    return io.FileIO(descriptor, "rb")


def _again(descriptor: int | None) -> io.FileIO:
    """An open file from its beginning; closing this leaves it open."""
    assert descriptor is not None, "a source is bytes, a path or a descriptor"
    file = io.FileIO(descriptor, "rb", closefd=False)
    file.seek(0)
    return file


def _read(source: Source) -> Iterator[bytes]:
    with open_plain(source.path) if source.path is not None else _again(source.descriptor) as file:
        left = source.limit_bytes
        while left > 0:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                return
            left -= len(chunk)
            yield chunk


def _digest(file: BinaryIO) -> Artifact:
    digest = hashlib.sha256()
    size = 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return Artifact(digest.hexdigest(), size)


def _done(answer: Answer) -> asyncio.Future[Answer]:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def _outcome(function: Callable[[Item], Any], item: Item) -> Any:
    """The answer, or the error, so that one of a batch fails alone."""
    try:
        return function(item)
    except Exception as error:
        return error


class _Pool(Generic[Item, Answer]):
    """Threads that take what is waiting, up to a batch each, and answer on the loop with one wake-up a batch."""

    def __init__(self, name: str, threads: int, batch_max: int, work: Callable[[list[Item]], list[Any]]) -> None:
        self._work = work
        self._batch_max = batch_max
        self._queue: queue.SimpleQueue[tuple[Item, asyncio.Future[Answer]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        self._closed = False
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        if self._closed:
            raise StorageError("cannot write an output: the artifact store is closed")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._queue.put((item, future))
        return future

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            # a fair share of what waits, so that the threads sync side by side
            share = min(self._batch_max, 1 + self._queue.qsize() // len(self._threads))
            while len(batch) < share:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    self._queue.put(None)
                    break
                batch.append(item)
            answers = self._answers([item for item, _ in batch])
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is left to hear
                self._loop.call_soon_threadsafe(_resolve, [future for _, future in batch], answers)

    def _answers(self, items: list[Item]) -> list[Any]:
        try:
            return self._work(items)
        except Exception as error:
            return [error] * len(items)


def _resolve(futures: list[asyncio.Future[Any]], answers: list[Any]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
