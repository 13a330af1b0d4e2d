"""What people and pipes get to see of a record."""

from __future__ import annotations

import pytest

from lethe.printing import print_record


def test_a_pipe_gets_long_fields_whole_and_no_padding(capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"name": "x" * 300}
    print_record({"id": "7", "spec": spec, "reason": None}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == ["id", "spec", "reason"]
    assert "x" * 300 in lines[1]
    assert lines == [line.rstrip() for line in lines]
