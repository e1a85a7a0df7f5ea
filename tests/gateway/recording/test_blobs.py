import hashlib
import os

import pytest

from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.gateway.blobs import BlobStore


def test_a_blob_is_named_by_its_content_and_written_once(tmp_path):
    blobs = BlobStore(tmp_path / "blobs")
    data = bytes(range(256)) * 100
    name = blobs.put(data)
    assert name == hashlib.sha256(data).hexdigest()
    path = tmp_path / "blobs" / name[:2] / name[2:4] / name
    assert path.read_bytes() == data
    before = path.stat()
    assert blobs.put(data) == name
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert blobs.get(name) == data
    assert [file for file in (tmp_path / "blobs").rglob("*") if file.is_file()] == [path]
    assert blobs.get(blobs.put(b"")) == b""


def test_changed_bytes_are_never_handed_out_and_a_short_file_is_written_again(tmp_path):
    blobs = BlobStore(tmp_path)
    name = blobs.put(b"one two")
    path = tmp_path / name[:2] / name[2:4] / name
    path.write_bytes(b"one twO")
    with pytest.raises(IntegrityError, match=str(path)):
        blobs.get(name)
    path.write_bytes(b"one")
    assert blobs.put(b"one two") == name
    assert blobs.get(name) == b"one two"


def test_a_blob_over_the_limit_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"body: found 11 bytes; a blob has at most 10"):
        BlobStore(tmp_path, max_bytes=10).put(b"x" * 11)
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_is_told_and_deleting_is_idempotent(tmp_path):
    blobs = BlobStore(tmp_path)
    name = blobs.put(b"x")
    assert blobs.delete(name)
    assert not blobs.delete(name)
    with pytest.raises(ConfigError, match=name):
        blobs.get(name)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "/" + "a" * 63, "é" * 64]
)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    for method in (BlobStore(tmp_path).get, BlobStore(tmp_path).delete):
        with pytest.raises(ConfigError, match="64 hexadecimal"):
            method(name)


def test_a_blob_that_was_put_again_just_now_is_not_deleted(tmp_path):
    blobs = BlobStore(tmp_path)
    name = blobs.put(b"x")
    path = tmp_path / name[:2] / name[2:4] / name
    os.utime(path, (1, 1))
    blobs.put(b"x")
    assert not blobs.delete(name, unused_s=60)
    assert blobs.get(name) == b"x"
    os.utime(path, (1, 1))
    assert blobs.delete(name, unused_s=60)
    assert not blobs.delete(name)
