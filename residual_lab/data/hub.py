"""Corpora of the Hugging Face hub, or of a local folder that holds the same files, streamed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from residual_lab.config.data import TextDataConfig
from residual_lab.data.local import LocalFiles, files_below
from residual_lab.data.source import Split, by_share, grouped
from residual_lab.errors import DataError

TIMEOUT_SECONDS = 10  # of the first question to the hub
ELSEWHERE = "or give a folder with the same files: data.path=FOLDER"


class HubDataset:
    """A data set that ``datasets.load_dataset`` streams; no more is fetched than is used.

    The hub's own validation and test splits are used. Where it has one of the two, its documents
    are dealt out by hash, half to each; where it has neither, both are taken out of ``train`` by
    ``data.validation_fraction`` and ``data.test_fraction``.
    """

    def __init__(self, data: TextDataConfig) -> None:
        self.data = data
        self.folder = _local_folder(data) if data.path is not None else None

    def snapshot(self) -> str:
        """On the hub a name: a corpus that was prepared once stays at the commit it came from."""
        return self.folder.snapshot() if self.folder else "hub"

    def version(self) -> str:
        """The commit of the data set; of a local folder, the hash of its files."""
        if self.folder:
            return self.folder.version()
        from huggingface_hub import HfApi

        try:
            info = HfApi().dataset_info(
                str(self.data.repository), revision=self.data.revision, timeout=TIMEOUT_SECONDS
            )
        except Exception as error:
            raise hub_error(error, "data.repository", str(self.data.repository)) from None
        return str(info.sha)

    def batches(
        self, split: Split, version: str, start: Any = None
    ) -> Iterator[tuple[list[str], Any]]:
        """Batches of documents; a position is the state of the data set's own reader."""
        try:
            dataset, keep = self._load(split, version)
            if start is not None:
                dataset.load_state_dict(start)
            for batch in grouped(filter(keep, self._texts(dataset))):
                yield batch, dataset.state_dict()
        except DataError:
            raise
        except Exception as error:
            key, value = ("data.path", self.data.path), ("data.repository", self.data.repository)
            name, where = key if self.folder else value
            raise hub_error(error, name, str(where)) from None

    def _load(self, split: Split, version: str) -> tuple[Any, Callable[[str], bool]]:
        import datasets

        datasets.disable_progress_bars()
        revision = None if self.folder else version
        location = str(self.data.path or self.data.repository)
        subset = self.data.subset
        configurations = datasets.get_dataset_config_names(location, revision=revision)
        if subset is not None and subset not in configurations:
            if not self.folder:
                raise DataError(
                    f"data.subset={subset} is not in {location}: choose of "
                    + ", ".join(sorted(configurations)[:20])
                )
            inner = Path(location, subset)
            location, subset = (str(inner) if inner.is_dir() else location), None
        streams = datasets.load_dataset(location, subset, revision=revision, streaming=True)
        if "train" not in streams:
            raise DataError(f"{location} has no split `train` but {', '.join(map(str, streams))}")
        name, keep = self._place(split, set(streams))
        return streams[name], keep

    def _place(self, split: Split, available: set[str]) -> tuple[str, Callable[[str], bool]]:
        """The hub's split that a split is read from, and which of its documents belong to it."""
        held_out = sorted(available & {"validation", "test"})
        if not held_out:
            fractions = self.data.validation_fraction, self.data.test_fraction
            return "train", by_share(split, *fractions)
        if split == "train" or len(held_out) == 2:
            return split, lambda text: True
        return held_out[0], by_share(split, 0.5, 0.5)

    def _texts(self, dataset: Any) -> Iterator[str]:
        field = self.data.text_field
        for row in dataset:
            if field not in row:
                where, fields = self.data.path or self.data.repository, ", ".join(row)
                raise DataError(f"data.text_field={field} is no field of {where}: it has {fields}")
            yield row[field] or ""


def _local_folder(data: TextDataConfig) -> LocalFiles:
    root = Path(str(data.path))
    if not root.is_dir():
        raise DataError(
            f"data.path={root} is not a folder: give one that holds {data.name}'s files"
        )
    names = list(files_below(root))
    if not names:
        raise DataError(f"data.path={root} is empty: give a folder that holds {data.name}'s files")
    return LocalFiles(root, names, data.text_field, (0.0, 0.0))


def hub_error(
    error: Exception,
    key: str,
    value: str,
    at_hand: str = "data=python_source",
    elsewhere: str = ELSEWHERE,
) -> DataError:
    """One line that says what to do about an error of the hub's clients.

    ``at_hand`` is of the same kind and needs no download; ``elsewhere`` says how to do without
    the hub.
    """
    from huggingface_hub import errors

    reason = f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0]
    said = str(error) if type(error).__name__ == "DatasetNotFoundError" else ""  # of `datasets`
    if isinstance(error, errors.GatedRepoError) or "is a gated dataset" in said:
        return DataError(
            f"{key}={value} is gated: accept its terms at huggingface.co, then `hf auth login` or "
            f"set HF_TOKEN; {elsewhere}"
        )
    if isinstance(error, errors.RevisionNotFoundError) or said.startswith("Revision"):
        return DataError(f"{key}={value} has no such data.revision: leave it null for the newest")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError) or said:
        return DataError(
            f"{key}={value} is not on the hub, or private: check the name, or `hf auth login`; "
            f"{elsewhere}"
        )
    if key == "data.path":
        return DataError(f"{key}={value} cannot be read as a data set ({reason})")
    return DataError(
        f"{key}={value} cannot be read from the hub ({reason}): check the connection, HF_ENDPOINT "
        f"and HF_HUB_OFFLINE and run again, what is there is kept; {elsewhere}; or take "
        f"{at_hand}, which needs no download"
    )
