"""Settings that cannot be used end a command with what is wrong and what to do next, never with a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from coordinator.runtime.settings import Settings, variable_of
from coordinator.store.address import AddressUnusable, parse_address
from lethe import environment
from lethe.cli import app, main
from lethe.commands.serve import _refuse_what_would_fail_later
from lethe.failures import CommandFailed
from lethe.process import open_coordinator, settings_from

Run = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("LETHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with these variables; gives its exit code and what it said on standard error."""

    def run(*arguments: str, **variables: str) -> tuple[int, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["lethe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("LETHE_DATABASE_URL", "mysql://a:secret@b/c", "mysql is not supported"),
        ("LETHE_DATABASE_URL", "postgresql+psycopg://a:secret@b/c", "leave out +psycopg"),
        ("LETHE_DATABASE_URL", "lethe.db", "it is not an address"),
        ("LETHE_DATABASE_URL", "postgresql://a:secret@b:port/c", "it is not an address"),
        ("LETHE_DATABASE_URL", "postgresql://a:secret@b/c?sslkey=x", "the parameter sslkey is not known"),
        ("LETHE_DATABASE_URL", "sqlite:////nowhere/at/all.db", "the database cannot be reached"),
        ("LETHE_DATABASE_URL", "", "LETHE_DATABASE_URL is empty"),
        ("LETHE_REDIS_URL", "http://:secret@cache", "LETHE_REDIS_URL: write redis://"),
        ("LETHE_REDIS_URL", "redis://:secret@cache:port", "correct --redis-url or LETHE_REDIS_URL"),
        ("LETHE_BLOBS", "postgres", "use LETHE_BLOBS=file"),
        ("LETHE_BLOBS", "s3", "LETHE_BLOBS: found 's3'"),
        ("LETHE_COMPUTE", "gpu", "LETHE_COMPUTE: found 'gpu'"),
        ("LETHE_PORT", "http", "LETHE_PORT: found 'http'"),
        ("LETHE_MAX_WAIT_S", "soon", "LETHE_MAX_WAIT_S: found 'soon'"),
        ("LETHE_KERNEL_LEASE_S", "inf", "LETHE_KERNEL_LEASE_S: found 'inf'"),
        ("LETHE_MAX_BLOB_BYTES", "64GB", "LETHE_MAX_BLOB_BYTES: found '64GB'"),
        ("LETHE_LOG_JSON", "perhaps", "LETHE_LOG_JSON: found 'perhaps'"),
        ("LETHE_HOME", "/dev/null/home", "/dev/null is not a directory"),
        ("LETHE_EVIDENCE_DIR", "/dev/null", "/dev/null is not a directory"),
        ("LETHE_BLOB_DIR", "/dev/null/blobs", "choose another with LETHE_BLOB_DIR"),
    ],
)
def test_a_bad_setting_is_named_with_a_next_step_and_no_secret(
    run: Run, variable: str, value: str, complaint: str
) -> None:
    code, said = run("db", "current", **{variable: value})
    assert code in (1, 2) and complaint in said
    assert "error: " in said and "next:  " in said
    assert "secret" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LETHE_DATABSE_URL", "did you mean LETHE_DATABASE_URL?"),
        ("LETHE_ADMIN_TOKENFILE", "did you mean LETHE_ADMIN_TOKEN_FILE?"),
        ("lethe_database_url", "did you mean LETHE_DATABASE_URL?"),
        ("LETHE_TOKN", "did you mean LETHE_TOKEN?"),
        ("LETHE_QQQQQQ", "unset LETHE_QQQQQQ"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["compute"], ["db", "upgrade"], ["worker"], ["runs", "list"], ["demo"]])
def test_an_unknown_variable_is_refused_by_every_command(
    run: Run, command: list[str], name: str, meant: str, tmp_path: Path
) -> None:
    code, said = run(*command, **{name: "x"})
    assert code == 2 and name in said and meant in said
    assert not (tmp_path / "home").exists()


def test_variables_of_other_roles_of_tests_and_of_kubernetes_are_known(run: Run) -> None:
    known = ["LETHE_TEST_PG_URL", "LETHE_CRASH_AT", "LETHE_DB_PASSWORD", "LETHE_DATA", "LETHE_CALLBACK_HOSTS"]
    of_kubernetes = [
        "LETHE_SERVICE_HOST",
        "LETHE_PORT_8440_TCP_ADDR",
        "LETHE_COORDINATOR_PORT",
        "LETHE_API_SERVICE_PORT_HTTP",
    ]
    code, said = run("data", "where", "--json", **dict.fromkeys((*known, *of_kubernetes), "x"))
    assert code == 0, said


def test_help_opens_whatever_the_environment_holds(run: Run) -> None:
    assert run("serve", "--help", LETHE_DATABSE_URL="x")[0] == 0


def test_the_list_of_variables_is_what_commands_and_compose_read() -> None:
    def read_by(command: Any) -> set[str]:
        names = {str(parameter.envvar) for parameter in command.params if getattr(parameter, "envvar", None)}
        return names.union(*map(read_by, getattr(command, "commands", {}).values()))

    from services.data.data_folders import VARIABLE

    assert read_by(typer.main.get_command(app)) | {VARIABLE} == environment.OF_COMMANDS
    compose = (Path(__file__).parents[3] / "deploy" / "compose.yaml").read_text("utf-8")
    assert all(f"${{{name}" in compose for name in environment.OF_DEPLOYMENT)
    assert {variable_of(field) for field in Settings.model_fields} <= environment.known_variables()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_every_spelling_of_postgres_means_the_driver_that_is_installed(scheme: str) -> None:
    url = parse_address(f"{scheme}://a:b@c/d?sslmode=require")
    assert url.render_as_string(hide_password=False) == "postgresql+asyncpg://a:b@c/d?ssl=require"


def test_an_address_that_is_refused_is_not_repeated() -> None:
    with pytest.raises(AddressUnusable) as caught:
        parse_address("oracle://a:secret@b/c")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        (b"", "has 0 characters"),
        (b"short\n", "has 5 characters; at least 16"),
        (b"\xff\xfe" * 20, "it is not text"),
        ("größer als sechzehn".replace(" ", "").encode(), "is not one word of ASCII"),
        (b"several words that are long enough", "is not one word of ASCII"),
    ],
)
def test_an_admin_token_file_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "admin"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CommandFailed) as caught:
        _refuse_what_would_fail_later(Settings(admin_token_file=file))
    assert complaint in caught.value.message and str(file) in caught.value.message
    assert caught.value.next_step is not None


def test_options_win_over_variables_and_are_named_by_their_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_PORT", "1")
    assert settings_from(port=2).port == 2 and settings_from().port == 1
    with pytest.raises(CommandFailed, match="--port: found '70000'"):
        settings_from(port=70000)


def test_a_home_that_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root, who may write everywhere
    with pytest.raises(CommandFailed, match="cannot be written to by this user"):
        open_coordinator(Settings(home=tmp_path / "home"))


def test_a_database_that_is_not_there_or_lets_nobody_in_is_told(run: Run, postgres_url: str) -> None:
    url = parse_address(postgres_url)
    for changed, step in (
        (url.set(database="no_such_database"), "createdb"),
        (url.set(username="nobody_here"), "correct the user in LETHE_DATABASE_URL"),
        (url.set(host="127.0.0.1", port=1, query={}), "check that it runs"),
    ):
        code, said = run("db", "upgrade", LETHE_DATABASE_URL=changed.render_as_string(hide_password=False))
        assert code == 1 and step in said and "Traceback" not in said, said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--token-file", "nowhere"], "cannot read the token file nowhere"),
        (["--token-file", "noise"], "cannot read the token file noise"),
        (["--token-file", "token", "--ca-file", "nowhere"], "no CA file nowhere"),
        (["--token-file", "token", "--coordinator", "http://"], "give the coordinator's address"),
        (["--token-file", "token", "--canary", "-1", "2"], "--canary"),
        (["--fleet", "nowhere"], "cannot read the fleet file nowhere"),
        (["--fleet", "noise"], "noise is not valid YAML"),
    ],
)
def test_unusable_options_of_a_worker_end_it_with_a_next_step(
    run: Run, options: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "token").write_text("one-word")
    code, said = run("worker", "--data", "digits", *options)
    assert code == 2 and complaint in said and "next:  " in said
    assert "Traceback" not in said
