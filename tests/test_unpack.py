# SPDX-License-Identifier: Apache-2.0
"""Unpacking of downloads: damaged and malicious archives."""

import gzip
import io
import re
import stat
import tarfile
import zipfile

import pytest

from edgernn.errors import EdgernnError
from edgernn.training.datasets import File
from edgernn.training.datasets.unpack import unpack
from tests.file_server import CONTENT


def tar_bytes(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return out.getvalue()


def zip_bytes(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if isinstance(content, bytes):
                archive.writestr(info, content)
            else:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, content[1])
    return out.getvalue()


ARCHIVES = pytest.mark.parametrize(
    ("suffix", "pack"), [(".tar.gz", tar_bytes), (".zip", zip_bytes)], ids=["tar", "zip"]
)


def test_hard_link_and_device_are_refused(tmp_path):
    for kind in (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        path = tmp_path / "all.tar.gz"
        path.write_bytes(tar_bytes(("one.bin", b"1"), ("x", (kind, "one.bin"))))
        with pytest.raises(EdgernnError, match="got a link or device: 'x'"):
            unpack(path, (File("one.bin"),), tmp_path)


@ARCHIVES
def test_archive_that_unpacks_to_too_much_is_refused(tmp_path, suffix, pack):
    path = tmp_path / f"all{suffix}"
    path.write_bytes(pack(("one.bin", bytes(3_000_000))))
    with pytest.raises(EdgernnError, match="expected at most 1,000,000 bytes unpacked, got more"):
        unpack(path, (File("one.bin"),), tmp_path, limit=1_000_000)


@ARCHIVES
def test_damaged_archive_is_named(tmp_path, suffix, pack):
    whole = pack(("one.bin", CONTENT))
    for damaged in (whole[:1000], whole[:-30], whole[:2000] + b"xx" + whole[2002:], b"", b"text" * 100):
        path = tmp_path / f"all{suffix}"
        path.write_bytes(damaged)
        with pytest.raises(EdgernnError, match=rf"all{re.escape(suffix)}: expected"):
            unpack(path, (File("one.bin"),), tmp_path)


def test_long_name_that_a_header_claims_is_not_read(tmp_path):
    info = tarfile.TarInfo("@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8**11 - 1
    path = tmp_path / "all.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240)))
    with pytest.raises(EdgernnError, match="got a header that claims 8,589,934,592 bytes"):
        unpack(path, (File("one.bin"),), tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_zip_members_that_unpack_without_a_bound_are_refused(tmp_path, method):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("one.bin", CONTENT)
    with pytest.raises(EdgernnError, match=rf"all.zip: expected members that .* got zip compression method {method}"):
        unpack(path, (File("one.bin"),), tmp_path)
    assert not (tmp_path / "one.bin").exists()
