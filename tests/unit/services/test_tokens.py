"""Tokens are left out of what others may read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from services.core.tokens import hide_tokens

TOKEN = f"lethe_{'0123456789abcdef' * 2}_a-secret_that-nobody-may-see"


def test_a_secret_is_left_out_and_the_credential_it_belongs_to_is_not() -> None:
    assert hide_tokens(f"GET /v1/runs/{TOKEN}?x") == f"GET /v1/runs/lethe_{'0123456789abcdef' * 2}_***?x"
    assert hide_tokens("lethe_data and lethe_version") == "lethe_data and lethe_version"


@pytest.mark.parametrize("as_json", [True, False])
def test_no_line_of_a_process_log_holds_a_token_also_not_in_a_traceback(as_json: bool) -> None:
    program = f"""
from lethe.process import configure_logging
import structlog
configure_logging(as_json={as_json})
try:
    raise ValueError({TOKEN!r})
except ValueError as error:
    structlog.get_logger().error("request.broke", path="/v1/runs/" + {TOKEN!r}, exc_info=error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert "request.broke" in said and "ValueError" in said and "nobody-may-see" not in said
    if as_json:
        assert json.loads(said)["event"] == "request.broke"
