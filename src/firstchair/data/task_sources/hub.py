"""Data sets of the Hugging Face hub, read where they are: only the rows that are needed come over the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, Any, cast

from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.data.task_sources.rows import PARQUET

CONVERTED = "refs%2Fconvert%2Fparquet"
"""The branch on which the hub keeps every public data set as Parquet."""


class HubFiles:
    """The Parquet files of one data set."""

    def __init__(self, repo_id: str, file_system: Any = None):
        """``file_system`` (of fsspec) is the hub's own unless given. Raises ``ConfigError`` without the package."""
        self.repo_id = repo_id
        self._system = file_system or _hub()

    def paths(self) -> list[str]:
        """In order. Raises ``ConfigError`` when there is no such data set, ``UpstreamError`` without the hub."""
        with _explained(self.repo_id):
            for revision in ("", f"@{CONVERTED}"):
                found = self._system.find(f"datasets/{self.repo_id}{revision}")
                files = sorted(str(path) for path in found if str(path).endswith(PARQUET))
                if files:
                    return files
        raise ConfigError(f"{self.repo_id}: no Parquet file on the hub; download it and give NAME=DIRECTORY")

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """One file, for reading at any place. Raises as ``paths``."""
        with _explained(self.repo_id), self._system.open(path, "rb") as file:
            yield cast("IO[bytes]", file)


def _hub() -> Any:
    if find_spec("huggingface_hub") is None:
        raise ConfigError("huggingface_hub: not installed; run: pip install huggingface_hub, or give local files")
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """What the hub's client raises, as errors of ours."""
    try:
        from huggingface_hub import errors
    except ImportError:  # a file system of somebody else's
        yield
        return
    fix = f"download it elsewhere (hf download --repo-type dataset {repo_id}) and give NAME=DIRECTORY"
    try:
        yield
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise ConfigError(f"{repo_id}: not to be had from the hub ({type(error).__name__}); {fix}") from None
    except FileNotFoundError:
        raise ConfigError(f"{repo_id}: no such data set on the hub; {fix}") from None
    except (getattr(errors, "HTTPError", OSError), OSError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise UpstreamError(f"{repo_id}: the hub cannot be reached ({why}); {fix}", retryable=True) from None
