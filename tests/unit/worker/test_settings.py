from __future__ import annotations

from pathlib import Path

import pytest

from worker.settings import Member, OptionsUnusable, WorkerOptions, load_fleet, members_of


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
