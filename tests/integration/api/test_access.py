"""Who may do what, and what the others see of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from coordinator.runtime.accounts import ensure_admin
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import schema
from tests.integration.api.site import MODEL, Site, blob, code_of, update

pytestmark = pytest.mark.anyio
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer nonsense", "Basic YTpi", f"Bearer lethe_{'0' * 32}_x"])
async def test_a_request_without_a_valid_token_is_unauthenticated(small_site: Site, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = await small_site.http.get("/v1/runs", headers=headers)
    assert code_of(response) == "unauthenticated"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_token_with_the_right_id_and_another_secret_is_refused(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    forged = small_site.actor(a.token[:-4] + "AAAA")
    assert code_of(await forged.call("POST", "/v1/tasks/claim")) == "unauthenticated"


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", {"read"}),
        ("compliance", {"read"}),
        ("operator", {"read", "enrol", "pause"}),
        ("admin", {"read", "enrol", "pause", "issue"}),
    ],
)
async def test_a_role_may_do_what_the_table_says(small_site: Site, role: str, allowed: set[str]) -> None:
    await small_site.enrol("a")
    run = await small_site.start_run()
    somebody = await small_site.staff(role)
    federation = f"/v1/federations/{small_site.federation_id}"
    tried = {
        "read": await somebody.call("GET", f"/v1/runs/{run['id']}"),
        "enrol": await somebody.call("POST", f"{federation}/clients", json={"name": "b"}),
        "pause": await somebody.call("POST", f"/v1/runs/{run['id']}/pause"),
        "issue": await somebody.call("POST", f"{federation}/credentials", json={"role": "viewer"}),
        "found": await somebody.call("POST", "/v1/federations", json={"name": "another"}),
        "work": await somebody.call("POST", "/v1/tasks/claim"),
    }
    assert {name for name, response in tried.items() if response.is_success} == allowed
    assert all(code_of(response) == "forbidden" for response in tried.values() if not response.is_success)


async def test_a_client_may_not_read_what_operators_read(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    assert code_of(await a.call("GET", "/v1/runs")) == "forbidden"
    assert code_of(await a.call("GET", f"/v1/runs/{NOBODY}/history")) == "forbidden"
    assert code_of(await a.call("GET", "/v1/federations")) == "forbidden"


async def test_what_belongs_to_another_federation_does_not_exist(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    (cohort,) = (await site.admin.get(f"/v1/runs/{run['id']}/cohorts"))["items"]
    (init,) = (await site.admin.get(f"/v1/runs/{run['id']}/checkpoints"))["items"]
    (task,) = await a.claim()
    elsewhere = await site.federation("oncology")
    (foreign_client,) = await site.enrol("a", federation_id=elsewhere)
    foreigner = await site.staff("admin", elsewhere)
    own = f"/v1/federations/{site.federation_id}"
    for method, path, body in (
        ("GET", own, None),
        ("GET", f"{own}/clients", None),
        ("POST", f"{own}/clients", {"name": "spy"}),
        ("POST", f"{own}/credentials", {"role": "admin"}),
        ("GET", f"{own}/credentials", None),
        ("GET", f"/v1/clients/{a.client_id}", None),
        ("POST", f"/v1/clients/{a.client_id}/credentials", None),
        ("DELETE", f"/v1/clients/{a.client_id}", None),
        ("GET", f"/v1/runs/{run['id']}", None),
        ("GET", f"/v1/runs?federation_id={site.federation_id}", None),
        ("POST", f"/v1/runs/{run['id']}/cancel", None),
        ("GET", f"/v1/runs/{run['id']}/events", None),
        ("GET", f"/v1/runs/{run['id']}/tasks", None),
        ("GET", f"/v1/runs/{run['id']}/history", None),
        ("GET", f"/v1/runs/{run['id']}/history/updates", None),
        ("GET", f"/v1/cohorts/{cohort['id']}/members", None),
        ("GET", f"/v1/checkpoints/{init['id']}", None),
        ("GET", f"/v1/checkpoints/{init['id']}/lineage", None),
        ("GET", f"/v1/checkpoints/{init['id']}/model", None),
        ("GET", f"/v1/blobs/{init['digest']}", None),
        ("GET", f"/v1/blobs/{init['digest']}?federation_id={site.federation_id}", None),
    ):
        response = await foreigner.call(method, path, json=body)
        assert code_of(response) == "not-found", (method, path)
    spec = {"name": "spy", "model": {"name": "mlp", "params": {"input_shape": [4], "num_classes": 2}}}
    wanted = {"federation_id": site.federation_id, "spec": spec}
    response = await foreigner.call("POST", "/v1/runs", json=wanted, headers={"Idempotency-Key": "k"})
    assert code_of(response) == "not-found"
    assert (await foreigner.get("/v1/runs"))["items"] == []
    assert [f["id"] for f in (await foreigner.get("/v1/federations"))["items"]] == [elsewhere]
    assert code_of(await foreign_client.submit(task, blob(update(1.0))[0])) == "not-found"
    assert (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] == "running"


async def test_a_client_reads_its_own_blobs_and_the_models_of_tasks_it_holds(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    model = f"/v1/blobs/{blob(MODEL)[0]}"
    await site.start_run()
    assert code_of(await a.call("GET", model)) == "not-found"
    (task,) = await a.claim()
    assert (await a.call("GET", model)).content == blob(MODEL)[1]
    own = f"/v1/blobs/{await a.put_blob(update(1.0))}"
    assert (await a.call("GET", own)).status_code == 200
    assert code_of(await b.call("GET", own)) == "not-found"
    assert (await b.call("HEAD", own)).status_code == 404
    assert (await a.submit(task, own.removeprefix("/v1/blobs/"))).status_code == 200
    assert code_of(await a.call("GET", model)) == "not-found"


async def test_a_rotated_token_works_at_once_and_the_old_one_no_longer(site: Site) -> None:
    (a,) = await site.enrol("a")
    await a.open_session()
    issued = await site.admin.post(f"/v1/clients/{a.client_id}/credentials")
    assert code_of(await a.call("POST", "/v1/tasks/claim")) == "unauthenticated"
    assert await site.actor(issued["token"]).claim(0) == []


async def test_a_clients_credential_tells_whose_it_is(site: Site) -> None:
    (a,) = await site.enrol("a")
    await site.staff("viewer")
    listed = (await site.admin.get(f"/v1/federations/{site.federation_id}/credentials"))["items"]
    assert {(one["role"], one["client_id"], one["client_name"]) for one in listed} == {
        ("client", a.client_id, "a"),
        ("viewer", None, None),
    }


async def test_a_revoked_credential_is_refused_at_once(site: Site) -> None:
    viewer = await site.staff("viewer")
    await viewer.get("/v1/runs")
    path = f"/v1/federations/{site.federation_id}/credentials"
    (listed,) = (await site.admin.get(path))["items"]
    assert "token" not in listed and listed["revoked_at"] is None
    assert (await site.admin.call("DELETE", f"/v1/credentials/{listed['id']}")).status_code == 204
    assert code_of(await viewer.call("GET", "/v1/runs")) == "unauthenticated"
    (listed,) = (await site.admin.get(path))["items"]
    assert listed["revoked_at"] is not None


async def test_the_installations_admin_cannot_be_revoked_over_http(site: Site) -> None:
    principal = await site.app.state.context.authenticator.principal(site.admin.token)
    response = await site.admin.call("DELETE", f"/v1/credentials/{principal.credential_id}")
    assert code_of(response) == "conflict"


async def test_a_removed_client_is_told_to_stop(site: Site) -> None:
    a, _ = await site.enrol("a", "b")
    await site.start_run()
    (task,) = await a.claim()
    assert (await site.admin.call("DELETE", f"/v1/clients/{a.client_id}")).status_code == 204
    assert code_of(await a.call("POST", "/v1/tasks/claim")) == "client-removed"
    assert code_of(await a.submit(task, blob(update(1.0))[0])) == "client-removed"
    assert (await site.admin.get(f"/v1/clients/{a.client_id}"))["status"] == "removed"
    response = await site.admin.call("POST", f"/v1/clients/{a.client_id}/credentials")
    assert code_of(response) == "conflict"


async def test_last_seen_follows_what_a_client_does_after_its_session(site: Site) -> None:
    (a,) = await site.enrol("a")
    path = f"/v1/clients/{a.client_id}"
    await a.open_session()
    await site.coordinator.presence.write()
    seen = [datetime.fromisoformat((await site.admin.get(path))["last_seen_at"])]
    await a.claim(wait_s=0)
    await site.coordinator.presence.write()
    seen.append(datetime.fromisoformat((await site.admin.get(path))["last_seen_at"]))
    await site.coordinator.presence.write()  # nothing was heard since
    seen.append(datetime.fromisoformat((await site.admin.get(path))["last_seen_at"]))
    assert seen[0] < seen[1] == seen[2]


async def test_a_task_that_is_done_shows_as_done(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    await a.train(1.0)
    found = (await site.admin.get(f"/v1/runs/{run['id']}/tasks"))["items"]
    assert [task["progress"] for task in found if task["status"] == "done"] == [1.0]


async def test_a_client_is_online_after_its_session(site: Site) -> None:
    (a,) = await site.enrol("a")
    path = f"/v1/clients/{a.client_id}"
    assert (await site.admin.get(path))["online"] is False
    await a.open_session()
    client = await site.admin.get(path)
    assert (client["online"], client["agent_version"]) == (True, "test")
    (listed,) = (await site.admin.get(f"/v1/federations/{site.federation_id}/clients"))["items"]
    assert listed == client


async def test_names_are_given_once(site: Site) -> None:
    await site.enrol("a")
    path = f"/v1/federations/{site.federation_id}/clients"
    assert code_of(await site.admin.call("POST", path, json={"name": "a"})) == "name-taken"
    assert code_of(await site.admin.call("POST", "/v1/federations", json={"name": "cardiology"})) == "name-taken"
    response = await site.admin.call("POST", f"/v1/federations/{NOBODY}/clients", json={"name": "a"})
    assert code_of(response) == "not-found"


async def test_the_first_admins_token_is_made_once_and_kept_private(tmp_path: Path) -> None:
    coordinator = Coordinator(Settings(home=tmp_path))
    await schema.upgrade(coordinator.database)
    await ensure_admin(coordinator)
    kept = (tmp_path / "admin.token").read_text()
    assert (tmp_path / "admin.token").stat().st_mode & 0o777 == 0o600
    await ensure_admin(coordinator)
    assert (tmp_path / "admin.token").read_text() == kept
    assert kept.startswith("lethe_")
    await coordinator.close()


async def test_an_admin_token_in_the_settings_replaces_the_former_one(tmp_path: Path) -> None:
    from coordinator.api.auth import Authenticator
    from services.core.errors import Rejected

    for token in ("first-admin-token", "second-admin-token", "second-admin-token"):
        coordinator = Coordinator(Settings(home=tmp_path, admin_token=SecretStr(token)))
        await schema.upgrade(coordinator.database)
        await ensure_admin(coordinator)
        await coordinator.close()
    coordinator = Coordinator(Settings(home=tmp_path))
    authenticator = Authenticator(coordinator.database, coordinator.bus, coordinator.browser_sessions)
    assert (await authenticator.principal("second-admin-token")).role == "admin"
    with pytest.raises(Rejected, match="unauthenticated"):
        await authenticator.principal("first-admin-token")
    assert not (tmp_path / "admin.token").exists()
    await coordinator.close()


async def test_a_token_in_an_address_or_a_wrong_place_is_in_no_answer_and_in_no_log(
    small_site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody pastes it where an id belongs."""
    token = (await small_site.staff("viewer")).token
    secret = token.split("_", 2)[2]
    answers = [
        await small_site.http.get("/v1/runs", params={"token": token, "access_token": token}),
        await small_site.admin.call("GET", f"/v1/runs/{token}"),
        await small_site.admin.call("GET", f"/v1/{token}"),
        await small_site.admin.call("GET", "/v1/erasure-requests", params={"status": token, "cursor": token}),
        await small_site.admin.call("POST", "/v1/federations", json={"name": token, token: token}),
        await small_site.http.get("/v1/runs", headers={"Authorization": f"Bearer {token}x"}),
    ]
    assert [one.status_code for one in answers] == [401, 422, 404, 422, 422, 401]
    printed = "".join(capfd.readouterr())
    assert "request.rejected" in printed and secret not in printed
    assert all(secret not in one.text + str(one.headers) for one in answers)
