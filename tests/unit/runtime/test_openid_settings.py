"""What can be set of signing in, and what is refused at the start instead of when somebody signs in."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from coordinator.runtime.settings import Grant, Settings

WHOLE = {
    "LETHE_PUBLIC_URL": "https://lethe.example/",
    "LETHE_OPENID_ISSUER": "https://login.example/realms/one",
    "LETHE_OPENID_CLIENT_ID": "lethe",
    "LETHE_OPENID_ROLES": "cn=officers=compliance@cardiology, everyone=viewer@oncology",
}


def test_groups_stand_for_roles_in_federations() -> None:
    settings = Settings.read(WHOLE)
    assert settings.public_url == "https://lethe.example"
    assert settings.grants == (
        Grant("cn=officers", "compliance", "cardiology"),
        Grant("everyone", "viewer", "oncology"),
    )


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("LETHE_OPENID_ROLES", None, "LETHE_OPENID_ROLES has to be set"),
        ("LETHE_PUBLIC_URL", None, "LETHE_PUBLIC_URL has to be set"),
        ("LETHE_OPENID_CLIENT_ID", None, "LETHE_OPENID_CLIENT_ID has to be set"),
        ("LETHE_OPENID_ROLES", "officers=compliance", "GROUP=ROLE@FEDERATION"),
        ("LETHE_OPENID_ROLES", "officers=client@cardiology", "GROUP=ROLE@FEDERATION"),
        ("LETHE_OPENID_ROLES", "=admin@cardiology", "GROUP=ROLE@FEDERATION"),
        ("LETHE_OPENID_ISSUER", "http://login.example", "https://"),
        ("LETHE_OPENID_ISSUER", "login.example", "https://"),
        ("LETHE_PUBLIC_URL", "https://lethe.example/path", "without a path"),
        ("LETHE_PUBLIC_URL", "https://somebody@lethe.example", "without a query"),
        ("LETHE_OPENID_SCOPES", "profile", "openid among them"),
        ("LETHE_SESSION_IDLE_S", "0", "greater than 0"),
    ],
)
def test_what_could_not_work_is_refused(variable: str, value: str | None, why: str) -> None:
    environment = {name: one for name, one in (WHOLE | {variable: value}).items() if one is not None}
    with pytest.raises(ValidationError, match=why):
        Settings.read(environment)
