"""Documents out of files: .txt, .jsonl, .json, .parquet, each also as .gz and .zst; and .py."""

import io
import json
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from residual_lab.errors import DataError

FORMATS = (".txt", ".jsonl", ".json", ".parquet")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
READABLE = ", ".join(FORMATS) + " (each also with .gz or .zst behind it)"
SECTION_CHARACTERS = 2**14  # a longer .txt is cut into documents of about this length


def format_of(path: Path) -> str | None:
    """The suffix that says how to read ``path``, without its compression; None: unreadable."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in FORMATS else None


def read_documents(path: Path, text_field: str) -> Iterator[str]:
    """Yield the documents of one file; errors are :class:`DataError` and name the file."""
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: remove it or write its text again")
    kind = format_of(path)
    try:
        if kind == ".parquet":
            yield from _parquet_rows(path, text_field)
            return
        with _open(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            yield from _sections(text) if kind == ".txt" else _json_lines(path, text, text_field)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason}): convert it first") from None
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read ({reason}): fetch it again or remove it") from None


def read_python(path: Path) -> str | None:
    """The text of a source file in its declared encoding (PEP 263); None: not decodable."""
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return None


def _open(path: Path) -> pa.NativeFile:
    compression = COMPRESSIONS.get(path.suffix.lower())
    return pa.input_stream(str(path), compression=compression)


def _sections(text: io.TextIOWrapper) -> Iterator[str]:
    """Cut at blank lines, or at any line end where a section would grow to twice the length."""
    lines: list[str] = []
    characters = 0
    while line := text.readline(SECTION_CHARACTERS):
        lines.append(line)
        characters += len(line)
        blank = not line.strip()
        if characters >= (SECTION_CHARACTERS if blank else 2 * SECTION_CHARACTERS):
            yield "".join(lines)
            lines, characters = [], 0
    yield "".join(lines)


def _json_lines(path: Path, text: io.TextIOWrapper, text_field: str) -> Iterator[str]:
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path} line {number} is no JSON ({error}): one object a line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{path} line {number} is no JSON object: one object a line")
        yield _text(row, text_field, f"{path} line {number}")


def _parquet_rows(path: Path, text_field: str) -> Iterator[str]:
    import pyarrow.parquet as pq

    with _open(path) as stream:
        compressed = path.suffix.lower() in COMPRESSIONS
        file = pq.ParquetFile(pa.BufferReader(stream.read()) if compressed else path)
        names = file.schema_arrow.names
        if text_field not in names:
            _text(dict.fromkeys(names), text_field, str(path))
        for batch in file.iter_batches(batch_size=1024, columns=[text_field]):
            for value in batch.column(0).to_pylist():
                yield _text({text_field: value}, text_field, str(path))


def _text(row: dict[str, object], text_field: str, where: str) -> str:
    if text_field not in row:
        fields = ", ".join(row)
        raise DataError(f"{where} has no field data.text_field={text_field}; it has {fields}")
    value = row[text_field]
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: data.text_field={text_field} is no text but {value!r:.40}")
    return value or ""
