"""Artifacts: bytes under the name of their digest, written so that the name never lies."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pawl import failpoints
from pawl.errors import ArtifactAltered, ArtifactMissing, DiskFull, StorageError
from pawl.home import Home
from pawl.storage import Artifact, ArtifactStore, artifacts
from pawl.storage.artifacts import CHUNK_BYTES

Run = Callable[..., Any]
HELLO = b"hello\n"
HELLO_SHA256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
LARGE = b"0123456789abcdef" * (CHUNK_BYTES // 16) + b"and a bit"


@pytest.fixture
def store(home: Home, run: Run) -> Iterator[ArtifactStore]:
    """A started store on the loop of ``run``."""
    made = ArtifactStore(home.artifacts)

    async def start() -> None:
        made.start()

    run(start())
    yield made
    run(made.close())


@asynccontextmanager
async def started(root: str) -> AsyncIterator[ArtifactStore]:
    made = ArtifactStore(root)
    made.start()
    try:
        yield made
    finally:
        await made.close()


async def put(store: ArtifactStore, data: bytes) -> Artifact:
    """Stage and publish."""
    staged = await store.stage(data)
    await store.publish(staged)
    return staged.artifact


def content(store: ArtifactStore, artifact: Artifact) -> bytes:
    with store.open_verified(artifact) as file:
        return file.read()


def of(data: bytes) -> Artifact:
    return Artifact(hashlib.sha256(data).hexdigest(), len(data))


# --- the order of things -------------------------------------------------------------------------------------


def test_bytes_are_synced_before_they_have_their_name(
    store: ArtifactStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before the rename and the directory after it, and only then does ``publish`` answer."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def traced_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")

    def traced_replace(source: str, target: str) -> None:
        assert Path(source).read_bytes() == HELLO
        assert target == store.path(HELLO_SHA256)
        replace(source, target)
        done.append("rename")

    async def body() -> None:
        staged = await store.stage(HELLO)
        done.append("staged")
        await store.publish(staged)
        done.append("published")

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "replace", traced_replace)
    run(body())

    assert done == ["sync file", "staged", "rename", "sync directory", "published"]


def test_nothing_has_its_name_before_it_is_published(store: ArtifactStore, run: Run) -> None:
    """Staged bytes lie under temporary names only, private to their owner, and are not found as artifacts."""

    async def body() -> list[Any]:
        return [await store.stage(HELLO), await store.stage(LARGE)]

    staged = run(body())

    names = os.listdir(store.root)
    assert sorted(os.path.join(store.root, name) for name in names) == sorted(each.temporary for each in staged)
    assert all(name.startswith(".tmp-") for name in names)
    assert {stat.S_IMODE(os.stat(each.temporary).st_mode) for each in staged} == {0o600}
    assert not store.holds(of(HELLO))


def test_the_name_is_the_digest(store: ArtifactStore, run: Run) -> None:
    """``hello`` and a newline is the artifact 5891b5…, of six bytes."""
    artifact = run(put(store, HELLO))

    assert artifact == Artifact(HELLO_SHA256, 6)
    assert os.listdir(store.root) == [HELLO_SHA256]
    assert content(store, artifact) == HELLO


# --- any bytes -----------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=200), limit=st.integers(0, 250))
@example(data=b"", limit=0)
@example(data=b"\0", limit=1)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_come_back(monkeypatch: pytest.MonkeyPatch, data: bytes, limit: int) -> None:
    """Bytes at hand and bytes from a file come back as they were, whole or up to the limit, from the same store and
    from a later one. (With chunks of 64 bytes, so that both sides of every boundary occur.)"""
    monkeypatch.setattr(artifacts, "CHUNK_BYTES", 64)

    async def body(root: str, source: str) -> None:
        async with started(root) as store:
            assert content(store, await put(store, data)) == data
            staged = await store.stage_file(source, limit)
            await store.publish(staged)
            assert staged.artifact == of(data[:limit])
            assert content(store, staged.artifact) == data[:limit]
        later = ArtifactStore(root)
        assert content(later, of(data)) == data
        assert sorted(os.listdir(root)) == sorted({of(data).sha256, of(data[:limit]).sha256})

    with tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "source")
        Path(source).write_bytes(data)
        root = os.path.join(directory, "artifacts")
        os.mkdir(root)
        asyncio.run(body(root, source))


def test_a_large_file_is_copied_up_to_its_limit(store: ArtifactStore, run: Run, tmp_path: Path) -> None:
    """Files larger than a chunk go through in pieces, and the limit cuts in the middle of one."""
    source = tmp_path / "source"
    source.write_bytes(LARGE)

    async def body(limit: int) -> Artifact:
        staged = await store.stage_file(str(source), limit)
        await store.publish(staged)
        return staged.artifact

    for limit in (CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * len(LARGE)):
        assert run(body(limit)) == of(LARGE[:limit])
        assert content(store, of(LARGE[:limit])) == LARGE[:limit]


@pytest.mark.parametrize("limit", [0, 5, CHUNK_BYTES + 1, 2 * len(LARGE)])
def test_what_is_open_is_copied_whatever_stands_at_its_path(
    store: ArtifactStore, run: Run, tmp_path: Path, limit: int
) -> None:
    """From its beginning, and the caller may close it at once."""
    source = tmp_path / "source"
    source.write_bytes(LARGE)

    async def body() -> Artifact:
        with open(source, "rb") as file:
            file.read(3)
            source.write_bytes(b"") if limit == 0 else source.unlink()
            staging = store.stage_open(file.fileno(), limit)
        staged = await staging
        await store.publish(staged)
        return staged.artifact

    before = len(os.listdir("/dev/fd"))
    assert run(body()) == of(LARGE[:limit])
    assert len(os.listdir("/dev/fd")) == before


def test_a_missing_file_is_empty_bytes(store: ArtifactStore, run: Run, tmp_path: Path) -> None:
    """A stream whose file was never made, or was removed, is empty."""

    async def body() -> Artifact:
        staged = await store.stage_file(str(tmp_path / "nothing"), 100)
        await store.publish(staged)
        return staged.artifact

    assert run(body()) == of(b"")
    assert content(store, of(b"")) == b""


# --- evidence ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [HELLO, LARGE], ids=["small", "large"])
def test_a_missing_artifact_is_said_to_be_missing(store: ArtifactStore, run: Run, data: bytes) -> None:
    """A deleted artifact is ``artifact_missing``, names the file, and is never read as empty."""
    artifact = run(put(store, data))
    os.unlink(store.path(artifact.sha256))

    with pytest.raises(ArtifactMissing, match=store.path(artifact.sha256)) as refused:
        store.open_verified(artifact)

    assert not refused.value.retryable
    assert not store.holds(artifact)


def cut(path: str) -> None:
    os.truncate(path, 0)


def shorten(path: str) -> None:
    os.truncate(path, os.path.getsize(path) - 1)


def lengthen(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"\n")


def flip(path: str) -> None:
    with open(path, "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("data", [HELLO, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("damage", [cut, shorten, lengthen, flip])
def test_an_altered_artifact_is_said_to_be_altered(
    store: ArtifactStore, run: Run, data: bytes, damage: Callable[[str], None]
) -> None:
    """Bytes that were truncated, lengthened or flipped are ``artifact_altered``, and no file is handed out."""
    artifact = run(put(store, data))
    damage(store.path(artifact.sha256))

    with pytest.raises(ArtifactAltered, match=store.path(artifact.sha256)) as refused:
        store.open_verified(artifact)

    assert not refused.value.retryable
    assert refused.value.details["sha256"] == artifact.sha256
    assert not store.holds(artifact)


def test_the_size_counts_too(store: ArtifactStore, run: Run) -> None:
    """A row whose digest is right and whose size is not does not get the bytes."""
    artifact = run(put(store, HELLO))

    with pytest.raises(ArtifactAltered):
        store.open_verified(artifact._replace(size_bytes=5))


# --- the same bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [HELLO, LARGE], ids=["small", "large"])
def test_the_same_bytes_twice_are_one_file(store: ArtifactStore, run: Run, data: bytes) -> None:
    """Equal bytes share a file, whether one after the other or fifty at once, and no temporary file is left."""

    async def body() -> list[Artifact]:
        first = await put(store, data)
        return [first, *await asyncio.gather(*(put(store, data) for _ in range(50 if data is HELLO else 4)))]

    assert set(run(body())) == {of(data)}
    assert os.listdir(store.root) == [of(data).sha256]
    assert content(store, of(data)) == data


def test_small_bytes_that_are_there_are_not_written_again(store: ArtifactStore, run: Run) -> None:
    """A thousand empty outputs cost one file: what is durable and still right is used as it is."""
    artifact = run(put(store, HELLO))
    before = os.stat(store.path(artifact.sha256)).st_ino

    async def body() -> Any:
        return await store.stage(HELLO)

    staged = run(body())

    assert staged.temporary is None
    assert os.listdir(store.root) == [artifact.sha256]
    assert os.stat(store.path(artifact.sha256)).st_ino == before


@pytest.mark.parametrize("data", [HELLO, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("damage", [cut, shorten, lengthen, flip, os.unlink])
@pytest.mark.parametrize("from_file", [False, True])
def test_a_damaged_file_is_not_used_for_new_bytes(
    store: ArtifactStore, run: Run, tmp_path: Path, data: bytes, damage: Callable[[str], None], from_file: bool
) -> None:
    """Where the file of a name is damaged or gone, new equal bytes are written and take its place."""
    source = tmp_path / "source"
    source.write_bytes(data)
    artifact = run(put(store, data))
    damage(store.path(artifact.sha256))

    async def body() -> None:
        staged = await (store.stage_file(str(source), len(data)) if from_file else store.stage(data))
        await store.publish(staged)

    run(body())

    assert content(store, artifact) == data
    assert os.listdir(store.root) == [artifact.sha256]


def test_a_file_that_cannot_be_read_is_not_used_for_new_bytes(
    store: ArtifactStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector under a name does not keep new equal bytes from being written."""
    artifact = run(put(store, HELLO))

    def failing(path: str, mode: str) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(artifacts, "open", failing, raising=False)
        with pytest.raises(StorageError, match="Input/output error"):
            store.open_verified(artifact)
        run(put(store, HELLO))

    assert content(store, artifact) == HELLO


def test_a_damaged_file_of_an_earlier_daemon_is_not_used(home: Home, store: ArtifactStore, run: Run) -> None:
    """What this daemon has not made durable itself is written anew."""
    Path(store.path(HELLO_SHA256)).write_bytes(b"jello\n")

    assert content(store, run(put(store, HELLO))) == HELLO


# --- disks that fail -----------------------------------------------------------------------------------------


def failing_write(monkeypatch: pytest.MonkeyPatch, poison: bytes, error: BaseException) -> None:
    """Writing bytes that hold ``poison`` fails."""
    write = os.write

    def failing(descriptor: int, data: Any) -> int:
        if poison in bytes(data):
            raise error
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", failing)


def in_one_batch(store: ArtifactStore, *items: Any) -> list[Any]:
    """Stage as one of the store's threads does with what it took at once."""
    return store._stage_all([artifacts.Source(item, None, len(item)) for item in items])


def test_a_full_disk_fails_one_of_a_batch_alone(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write that finds no room is ``disk_full`` for its caller, and leaves no half-written file behind."""
    failing_write(monkeypatch, b"poison", OSError(errno.ENOSPC, "No space left on device"))

    before, failed, behind = in_one_batch(store, b"before", b"some poison", b"behind")

    assert type(failed) is DiskFull
    assert [before.artifact, behind.artifact] == [of(b"before"), of(b"behind")]
    assert sorted(Path(store.root).iterdir()) == sorted(Path(each.temporary) for each in (before, behind))


def test_any_error_fails_one_of_a_batch_alone(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a bug or a lack of memory while one is written costs the others, or leaves a file behind."""
    failing_write(monkeypatch, b"poison", MemoryError())

    before, failed, behind = in_one_batch(store, b"before", b"some poison", b"behind")

    assert type(failed) is MemoryError
    assert sorted(Path(store.root).iterdir()) == sorted(Path(each.temporary) for each in (before, behind))


def test_a_failing_sync_is_an_error_and_can_be_tried_again(
    store: ArtifactStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes whose sync failed are not staged, and their file is gone; another try begins anew."""

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(StorageError, match="Input/output error"):
            run(put(store, HELLO))
    assert os.listdir(store.root) == []

    assert content(store, run(put(store, HELLO))) == HELLO


def test_a_failing_rename_fails_one_of_a_batch_alone(
    store: ArtifactStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rename that fails is an error for its caller; the others get their names. It can be tried again."""
    replace = os.replace

    def failing(source: str, target: str) -> None:
        if target == store.path(of(b"poison").sha256):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        replace(source, target)

    staged = in_one_batch(store, b"before", b"poison", b"behind")
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", failing)
        answers = store._publish_all(staged)

    assert answers[0] is None
    assert type(answers[1]) is DiskFull
    assert answers[2] is None
    assert [store.holds(each.artifact) for each in staged] == [True, False, True]
    assert store._publish_all(staged) == [None, None, None]
    assert store.holds(of(b"poison"))


def test_a_directory_that_cannot_be_synced_is_no_success(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renamed is not durable: where the directory's sync fails nobody hears of success, and another try mends it."""

    def failing(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    staged = in_one_batch(store, b"one", b"two")
    with monkeypatch.context() as broken:
        broken.setattr(artifacts, "sync_directory", failing)
        answers = store._publish_all(staged)

    assert [type(each) for each in answers] == [StorageError, StorageError]
    # nothing counts as durable yet: equal bytes are written again
    assert all(each.temporary for each in in_one_batch(store, b"one", b"two"))
    assert store._publish_all(staged) == [None, None]
    assert [each.temporary for each in in_one_batch(store, b"one", b"two")] == [None, None]


def test_publishing_twice_is_harmless(store: ArtifactStore, run: Run) -> None:
    """A try whose answer was lost may be repeated; a lost temporary file without its bytes is an error."""

    async def body() -> None:
        staged = await store.stage(HELLO)
        await store.publish(staged)
        await store.publish(staged)
        os.unlink(store.path(HELLO_SHA256))
        with pytest.raises(StorageError):
            await store.publish(staged)

    run(body())


@pytest.mark.parametrize("name", ["artifact.before_sync", "artifact.before_rename", "artifact.after_rename"])
@pytest.mark.parametrize("action", ["error", "crash"])
def test_an_error_at_any_point_can_be_tried_again(store: ArtifactStore, run: Run, name: str, action: str) -> None:
    """Wherever a write fails, its caller hears of it, and the second try is whole and leaves nothing beside it."""

    async def body() -> None:
        with pytest.raises((StorageError, RuntimeError), match=f"failpoint {name}"):
            await put(store, HELLO)
        for entry in os.scandir(store.root):
            if name != "artifact.before_sync":
                os.unlink(entry.path)
            else:
                raise AssertionError(f"{entry.name} was left behind")
        await put(store, HELLO)

    failpoints.arm(f"{name}={action}*1")
    try:
        run(body())
    finally:
        failpoints.arm("")

    assert os.listdir(store.root) == [HELLO_SHA256]
    assert content(store, of(HELLO)) == HELLO


# --- what nobody wants ---------------------------------------------------------------------------------------


def test_discarded_bytes_are_gone(store: ArtifactStore, run: Run) -> None:
    """Staged bytes that nobody will publish leave nothing; those that are shared are not touched."""

    async def body() -> None:
        kept = await put(store, HELLO)
        shared, unwanted = await store.stage(HELLO), await store.stage(b"unwanted")
        store.discard(shared, None, unwanted)
        store.discard(unwanted)
        assert os.listdir(store.root) == [kept.sha256]

    run(body())


def test_the_sweep_takes_what_a_dead_daemon_left_half_written(store: ArtifactStore, run: Run) -> None:
    """Temporary files go, artifacts and other files stay."""
    run(put(store, HELLO))
    for name in (".tmp-one", ".tmp-two", "somebody's"):
        Path(store.root, name).write_bytes(b"half")

    assert store.sweep() == 2
    assert sorted(os.listdir(store.root)) == sorted([HELLO_SHA256, "somebody's"])
    assert store.sweep() == 0


# --- the threads ---------------------------------------------------------------------------------------------


def test_close_finishes_what_waits(home: Home, run: Run) -> None:
    """What was staged and published before ``close`` is done; later calls are refused; closing twice is harmless."""

    async def body() -> None:
        store = ArtifactStore(home.artifacts)
        store.start()
        staged = await asyncio.gather(*(store.stage(b"%d" % number) for number in range(20)))
        waiting = [store.publish(each) for each in staged] + [store.stage(b"%d" % number) for number in range(100)]
        await store.close()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert all(store.holds(each.artifact) for each in staged)
        with pytest.raises(StorageError, match="closed"):
            await asyncio.wait_for(store.stage(HELLO), 10)
        with pytest.raises(StorageError, match="closed"):
            await asyncio.wait_for(store.publish(staged[0]), 10)
        await store.close()

    run(body())


def test_a_caller_that_gave_up_hurts_nobody(store: ArtifactStore, run: Run) -> None:
    """A cancelled call loses its answer and nothing else."""

    async def body() -> Artifact:
        given_up, waiting = store.stage(b"given up"), store.stage(HELLO)
        given_up.cancel()
        return (await waiting).artifact

    assert run(body()) == of(HELLO)
