from __future__ import annotations

from pathlib import Path

import pytest

from worker.settings import Member, OptionsUnusable, WorkerOptions, load_fleet, members_of
from worker.transport import Transport, _trust


def test_a_token_never_shows_in_a_printed_option() -> None:
    options = WorkerOptions(coordinator="http://c", token="secret")
    assert "secret" not in repr(options) + repr(members_of(options))


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    [member] = members_of(WorkerOptions(coordinator="http://c", token_file=tmp_path / "token"))
    assert isinstance(member, Member)
    assert member.token == "secret"


@pytest.mark.parametrize(
    "options",
    [
        WorkerOptions(coordinator="http://c"),
        WorkerOptions(token="t"),
        WorkerOptions(coordinator="c:8000", token="t"),
        WorkerOptions(coordinator="http://c", token="two words"),
        WorkerOptions(coordinator="http://c", token="t", token_file=Path("f")),
        WorkerOptions(coordinator="http://c", token_file=Path("missing")),
        WorkerOptions(fleet=Path("missing.yaml")),
        WorkerOptions(fleet=Path("missing.yaml"), token="t"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: WorkerOptions) -> None:
    with pytest.raises(OptionsUnusable):
        members_of(options)


def test_members_of_a_fleet_take_what_they_lack_from_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "coordinator: http://c\ndefaults: {data: 'npz:x'}\nclients: [{token: a}, {token: b, data: 'npz:y'}]\n"
    )
    members = members_of(WorkerOptions(fleet=path))
    assert [(member.token, member.data) for member in members if isinstance(member, Member)] == [
        ("a", "npz:x"),
        ("b", "npz:y"),
    ]


def test_a_fleets_bad_client_is_an_error_beside_good_members(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("coordinator: http://c\nclients: [{token: a}, {}]\n")
    good, bad = members_of(WorkerOptions(fleet=path))
    assert isinstance(good, Member)
    assert isinstance(bad, OptionsUnusable)


@pytest.mark.parametrize("text", ["clients: []", "clients: [{tokn: a}]", "[1, 2]", "clients: [", "clients: 3"])
def test_a_malformed_fleet_file_is_explained_without_quoting_tokens(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    with pytest.raises(OptionsUnusable, match=r"fleet\.yaml"):
        load_fleet(tmp_path / "fleet.yaml")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("variables", "address", "complaint"),
    [
        ({}, "http://127.0.0.1:port", "is no address"),
        ({"HTTPS_PROXY": "nonsense://proxy"}, "https://lethe.example.org", "is no address"),
        ({"SSL_CERT_FILE": "/nowhere.pem"}, "https://lethe.example.org", "SSL_CERT_FILE"),
    ],
)
async def test_an_address_or_authority_that_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], address: str, complaint: str
) -> None:
    _trust.cache_clear()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionsUnusable, match=complaint):
        Transport(address, "token")
    _trust.cache_clear()


@pytest.mark.anyio
async def test_a_file_of_authorities_that_holds_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text("not PEM")
    with pytest.raises(OptionsUnusable, match=r"authority\.pem"):
        Transport("https://lethe.example.org", "token", ca_file=tmp_path / "authority.pem")
