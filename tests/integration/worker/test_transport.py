"""The transport over real HTTP: back-off, resumed blobs, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from services.wire.v1.work import Failure, SessionRequest, Submission
from tests.support.scripted_coordinator import Corrupt, Cut, Refuse, ScriptedCoordinator
from worker.answers import BlobMissing, Dropped, Refused, Stopped, TryLater
from worker.backoff import Backoff
from worker.transport import Transport

pytestmark = pytest.mark.anyio

TASK = UUID(int=1)
SUBMISSION = Submission(lease_token="lease", num_samples=1)
BLOB = bytes(range(256)) * (4 << 12)  # 4 MiB
DIGEST = "sha256:" + hashlib.sha256(BLOB).hexdigest()


class Pauses(list[float]):
    """Stands in for asyncio.sleep and remembers."""

    async def __call__(self, delay_s: float) -> None:
        self.append(delay_s)
        assert len(self) < 50, "it keeps trying"


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def transport(coordinator: ScriptedCoordinator, pauses: Pauses) -> AsyncIterator[Transport]:
    transport = Transport(coordinator.url, "token-of-alice", backoff=Backoff(jitter=lambda: 0.5), sleep=pauses)
    yield transport
    await transport.aclose()


@pytest.fixture
def update(tmp_path: Path) -> Path:
    path = tmp_path / "update"
    path.write_bytes(BLOB)
    return path


async def test_an_upload_cut_in_the_middle_resumes_without_resending_the_first_half(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path
) -> None:
    half = len(BLOB) // 2
    coordinator.script["put"].append(Cut(half))
    await transport.upload(DIGEST, update, TASK)
    assert coordinator.blobs[DIGEST] == BLOB
    assert coordinator.body_bytes("put") == half
    assert coordinator.body_bytes("patch") == len(BLOB) - half


async def test_an_upload_cut_several_times_goes_on_from_each_break(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path
) -> None:
    coordinator.script["put"].append(Cut(1000))
    coordinator.script["patch"].extend([Cut(500), Cut(0), Cut(70_000)])
    await transport.upload(DIGEST, update, TASK)
    assert coordinator.blobs[DIGEST] == BLOB
    assert coordinator.body_bytes("put") + coordinator.body_bytes("patch") == len(BLOB)


async def test_an_upload_that_an_earlier_agent_began_is_finished(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path
) -> None:
    coordinator.parts[DIGEST] = bytearray(BLOB[:1_000_000])
    await transport.upload(DIGEST, update, TASK, maybe_started=True)
    assert coordinator.blobs[DIGEST] == BLOB
    assert coordinator.count("put") == 0
    assert coordinator.body_bytes("patch") == len(BLOB) - 1_000_000


async def test_a_blob_that_is_already_there_is_not_sent_again(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path
) -> None:
    coordinator.store(BLOB)
    await transport.upload(DIGEST, update, TASK, maybe_started=True)
    assert coordinator.count("put") == coordinator.count("patch") == 0


async def test_a_damaged_stored_part_is_replaced_by_a_whole_upload(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path
) -> None:
    coordinator.parts[DIGEST] = bytearray(b"damaged")
    await transport.upload(DIGEST, update, TASK, maybe_started=True)
    assert coordinator.blobs[DIGEST] == BLOB


@pytest.mark.parametrize(("name", "goes_with_it"), [("loss", True), ("größe", False), ("x" * 60, False)])
async def test_a_result_goes_with_the_upload_unless_it_does_not_fit_into_a_header(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path, name: str, goes_with_it: bool
) -> None:
    coordinator.takes_results = True
    metrics = {f"{name}{number}"[-64:]: 0.123456789012345 for number in range(1 if goes_with_it else 32)}
    result = Submission(lease_token="lease" * 20, update=DIGEST, num_samples=1, metrics=metrics)
    assert await transport.upload(DIGEST, update, TASK, result=result) is goes_with_it
    assert [found for _, found in coordinator.submissions] == [result] * goes_with_it
    assert coordinator.blobs[DIGEST] == BLOB


async def test_a_full_store_is_waited_for(
    transport: Transport, coordinator: ScriptedCoordinator, update: Path, pauses: Pauses
) -> None:
    coordinator.script["put"].append(Refuse("storage-full", 507, retry_after="30"))
    await transport.upload(DIGEST, update, TASK)
    assert pauses == [30.125]


async def test_a_broken_download_continues_where_it_broke(
    transport: Transport, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    coordinator.store(BLOB)
    coordinator.script["get"].append(Cut(100_000))
    await transport.download(DIGEST, len(BLOB), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BLOB
    ranges = [call.headers.get("range") for call in coordinator.calls]
    assert ranges == [None, "bytes=100000-"]


async def test_downloaded_bytes_of_another_digest_are_refused_and_removed(
    transport: Transport, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    coordinator.store(BLOB)
    coordinator.script["get"].append(Corrupt())
    with pytest.raises(Refused, match="digest-mismatch"):
        await transport.download(DIGEST, len(BLOB), tmp_path / "model")
    assert not (tmp_path / "model").exists()


async def test_a_download_longer_than_announced_is_refused(
    transport: Transport, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    coordinator.store(BLOB)
    with pytest.raises(Refused, match="too-large"):
        await transport.download(DIGEST, 1000, tmp_path / "model")


async def test_retry_after_is_honoured(transport: Transport, coordinator: ScriptedCoordinator, pauses: Pauses) -> None:
    coordinator.script["submit"].append(Refuse("unavailable", 503, retry_after="7"))
    await transport.submit(TASK, SUBMISSION)
    assert pauses == [7.125]


async def test_back_off_doubles_up_to_fifteen_seconds(
    transport: Transport, coordinator: ScriptedCoordinator, pauses: Pauses
) -> None:
    coordinator.script["submit"].extend([Refuse("unavailable", 503)] * 9)
    await transport.submit(TASK, SUBMISSION)
    assert pauses == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 7.5, 7.5, 7.5]


async def test_a_cut_connection_is_tried_again(
    transport: Transport, coordinator: ScriptedCoordinator, pauses: Pauses
) -> None:
    coordinator.script["submit"].extend([Cut(), Cut()])
    await transport.submit(TASK, SUBMISSION)
    assert len(coordinator.submissions) == 1
    assert len(pauses) == 2


async def test_a_coordinator_that_is_away_is_waited_for(coordinator: ScriptedCoordinator) -> None:
    coordinator.stop()
    attempts = 0

    async def come_back(delay_s: float) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            coordinator.start()

    transport = Transport(coordinator.url, "token-of-alice", sleep=come_back)
    await transport.fail(TASK, Failure(lease_token="lease", retryable=True, reason="x"))
    await transport.aclose()
    assert len(coordinator.failures) == 1


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("lease-lost", 409, Dropped),
        ("epoch-fenced", 409, Dropped),
        ("round-closed", 409, Dropped),
        ("too-stale", 409, Dropped),
        ("already-submitted", 409, Dropped),
        ("client-removed", 403, Stopped),
        ("client-erased", 403, Stopped),
        ("unauthenticated", 401, Stopped),
        ("forbidden", 403, Stopped),
        ("protocol-too-old", 426, Stopped),
        ("blob-missing", 409, BlobMissing),
        ("invalid-result", 422, Refused),
    ],
)
async def test_a_problem_becomes_the_exception_of_its_code(
    transport: Transport, coordinator: ScriptedCoordinator, code: str, status: int, kind: type[Exception]
) -> None:
    coordinator.script["submit"].append(Refuse(code, status))
    with pytest.raises(kind, match=code):
        await transport.submit(TASK, SUBMISSION)


async def test_a_claim_that_brought_no_answer_is_left_to_the_caller(
    transport: Transport, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script["claim"].append(Cut())
    with pytest.raises(TryLater) as caught:
        await transport.claim_once(1)
    assert not caught.value.answered


async def test_a_session_reports_the_protocol(transport: Transport, coordinator: ScriptedCoordinator) -> None:
    session = await transport.open_session_once(SessionRequest(agent_version="1", protocol=1))
    assert session.client_name == "alice"
    assert coordinator.sessions[0].protocol == 1
