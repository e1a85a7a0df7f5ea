import sys

import pytest

from firstchair.cli.main import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: ``(exit code, stdout, stderr)``."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["firstchair", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return call
