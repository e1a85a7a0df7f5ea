from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.core.jsonl import SkipBad
from firstchair.data.task_sources import hub
from firstchair.data.task_sources.catalogue import SOURCES, open_streams
from firstchair.data.task_sources.hub import HubFiles
from firstchair.data.task_sources.rows import parquet_rows
from firstchair.testing.fault_server import Answer, FaultServer, Seen

REPO = "nvidia/ToolScale"


def scaled(number: int) -> dict[str, object]:
    instructions = {"domain": "d", "reason_for_call": f"Reason {number}.", "task_instructions": "", "known_info": ""}
    criteria = {"actions": [{"name": "go", "arguments": {"to": "x", "by": None}}], "communicate_info": [str(number)]}
    return {"id": str(number), "user_scenario": {"instructions": instructions}, "evaluation_criteria": criteria}


class Directory(fsspec.AbstractFileSystem):
    """A directory that answers as the hub does: ``find`` and ``open`` by path inside of it."""

    cachable = False

    def __init__(self, root: Path):
        super().__init__()
        self.root, self.error = root, None

    def find(self, path: str, **_: object) -> list[str]:
        if self.error:
            raise self.error
        below = (self.root / path).rglob("*") if (self.root / path).exists() else ()
        return [str(file.relative_to(self.root)) for file in below if file.is_file()]

    def open(self, path: str, mode: str = "rb", **_: object):
        return (self.root / path).open(mode)


@pytest.fixture
def files(tmp_path, monkeypatch) -> Directory:
    directory = Directory(tmp_path)
    monkeypatch.setattr(hub, "_hub", lambda: directory)
    return directory


def put(root: Path, name: str, numbers: range) -> None:
    path = root / "datasets" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([scaled(number) for number in numbers]), path)


def test_sources_are_called_by_name_and_lie_on_the_hub():
    assert {name: source.repo_id for name, source in SOURCES.items()} == {
        "general_thought": "GeneralReasoning/GeneralThought-430K",
        "open_thoughts3": "open-thoughts/OpenThoughts3-1.2M",
        "tool_scale": REPO,
    }


def test_a_data_set_by_name_is_its_parquet_files_in_order(files):
    put(files.root, f"{REPO}/data/train-00001-of-00002.parquet", range(3, 5))
    put(files.root, f"{REPO}/data/train-00000-of-00002.parquet", range(3))
    (files.root / "datasets" / REPO / "README.md").write_text("x")
    (stream,) = open_streams("tool_scale", SkipBad())
    tasks = [stream.source.convert(row.fields) for row in stream.rows]
    assert [task.problem for task in tasks] == [f"Reason {number}." for number in range(5)]
    assert tasks[0].meta["golden_actions"] == [{"name": "go", "arguments": {"to": "x"}}]


def test_a_data_set_that_is_no_parquet_is_read_from_the_hub_s_own_copy(files):
    put(files.root, f"{REPO}@refs%2Fconvert%2Fparquet/default/train/0000.parquet", range(2))
    (stream,) = open_streams("tool_scale", SkipBad())
    assert len(list(stream.rows)) == 2


def test_what_the_hub_cannot_give_is_an_error_that_says_what_to_do(files):
    with pytest.raises(ConfigError, match="no Parquet file on the hub"):
        open_streams("tool_scale", SkipBad())
    files.error = FileNotFoundError("datasets/nvidia/ToolScale")
    with pytest.raises(ConfigError, match="no such data set on the hub; download it elsewhere"):
        open_streams("tool_scale", SkipBad())
    files.error = ConnectionError("name resolution")
    with pytest.raises(UpstreamError, match=r"cannot be reached .*name resolution.*hf download --repo-type dataset"):
        open_streams("tool_scale", SkipBad())


def test_the_hub_s_own_client_lists_reads_and_fails_as_it_should(tmp_path):
    from huggingface_hub import HfFileSystem

    put(tmp_path, "one.parquet", range(3))
    data = (tmp_path / "datasets" / "one.parquet").read_bytes()
    about, tree = {"id": REPO, "sha": "a" * 40}, f"/api/datasets/{REPO}/tree/main"
    entry = {"type": "file", "path": "data/one.parquet", "oid": "b" * 40, "size": len(data)}

    def answer(seen: Seen, _number: int) -> Answer:
        path = seen.path.partition("?")[0]
        if path.endswith("/resolve/main/data/one.parquet"):
            first, last = (int(end) for end in seen.headers["range"].removeprefix("bytes=").split("-"))
            return Answer(data[first : last + 1], status=206)
        known = {f"/api/datasets/{REPO}": about, tree: [entry]}
        missing = Answer({"error": "no"}, status=404, headers={"x-error-code": "RepoNotFound"})
        return Answer(known[path]) if path in known else missing

    with FaultServer(answer) as server:
        files = HubFiles(REPO, HfFileSystem(endpoint=server.base_url, token=False))
        (path,) = files.paths()
        with files.open(path) as handle:
            assert [row.fields["id"] for row in parquet_rows(handle, path)] == ["0", "1", "2"]
        with pytest.raises(ConfigError, match="no such data set"):
            HubFiles("nobody/nothing", HfFileSystem(endpoint=server.base_url, token=False)).paths()
    gone = HfFileSystem(endpoint="http://127.0.0.1:9", token=False, skip_instance_cache=True)
    with pytest.raises(UpstreamError, match="cannot be reached"):
        HubFiles("another/one", gone).paths()


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install huggingface_hub"):
        HubFiles(REPO)
