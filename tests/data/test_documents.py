"""Every format gives the documents that were written, or one line that names the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from residual_lab.data.documents import SECTION_CHARACTERS, read_documents, read_python
from residual_lab.errors import DataError

TEXTS = ["first\r\ntext, naïve\n", "日本\n\nsecond", "third <|endoftext|> text"]


def write(path: Path, data: bytes) -> Path:
    """Write ``data``, compressed as the name says."""
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def parquet_bytes(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "txt"])
def test_formats(tmp_path: Path, kind: str, compression: str) -> None:
    if kind == "parquet":
        data = parquet_bytes({"id": [1, 2, 3], "body": TEXTS})
    elif kind == "txt":
        data = TEXTS[0].encode()
    else:
        data = "\n\n".join(json.dumps({"body": text, "id": 1}) for text in TEXTS).encode()
    path = write(tmp_path / f"a.{kind}{compression}", data)
    read = [text for text in read_documents(path, "body") if text]
    assert read == (TEXTS[:1] if kind == "txt" else TEXTS)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_several_compressed_parts_in_one_file(tmp_path: Path, suffix: str) -> None:
    parts = [write(tmp_path / f"{i}.jsonl{suffix}", b'{"text": "%d"}\n' % i) for i in range(3)]
    path = tmp_path / f"all.jsonl{suffix}"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert list(read_documents(path, "text")) == ["0", "1", "2"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    rows = "".join(json.dumps({"text": f"{i * 7919 % 10007}"}) + "\n" for i in range(20000))
    path = write(tmp_path / f"cut.jsonl{suffix}", rows.encode())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cut\.jsonl"):
        list(read_documents(path, "text"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "a.txt is empty: remove it"),
        ("a.txt", b"caf\xe9 au lait", "a.txt is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text"', "a.jsonl line 2 is no JSON"),
        ("a.jsonl", b'["x"]', "a.jsonl line 1 is no JSON object"),
        ("a.jsonl", b'{"body": "x", "id": 1}', "no field data.text_field=text; it has body, id"),
        ("a.jsonl", b'{"text": 3}', "is no text but 3"),
        ("a.parquet", parquet_bytes({"body": ["x"]}), "it has body"),
        ("a.parquet", b"PAR1 no table", "a.parquet cannot be read"),
        ("a.txt.gz", b"", "a.txt.gz cannot be read"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data or (b"no gzip" if name.endswith("gz") else b""))
    with pytest.raises(DataError, match=message) as error:
        list(read_documents(path, "text"))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_long_text_is_cut_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" + ("\n" if i % 50 == 0 else "") for i in range(20000))
    path = write(tmp_path / "book.txt", text.encode())
    sections = list(filter(None, read_documents(path, "text")))
    assert "".join(sections) == text
    assert len(sections) >= len(text) // (2 * SECTION_CHARACTERS)
    assert all(section.endswith("\n\n") for section in sections[:-1])


def test_text_without_line_ends_is_cut_too(tmp_path: Path) -> None:
    text = "ab" * 100_000
    path = write(tmp_path / "line.txt", text.encode())
    sections = list(filter(None, read_documents(path, "text")))
    assert "".join(sections) == text
    assert max(map(len, sections)) <= 2 * SECTION_CHARACTERS


def test_python_is_read_in_its_declared_encoding(tmp_path: Path) -> None:
    latin, broken = tmp_path / "latin.py", tmp_path / "broken.py"
    latin.write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    broken.write_bytes(b"x = '\xe9'\n")
    assert read_python(latin) == "# -*- coding: latin-1 -*-\nx = 'é'\n"
    assert read_python(broken) is None
