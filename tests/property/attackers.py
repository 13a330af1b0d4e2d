"""A federation that trains by single steps, and somebody with one of its tokens who tries everything meanwhile."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from uuid import uuid4

import httpx

from services.core import digests
from services.wire.v1.work import FIGURES_ONLY
from tests.property.attacked_models import FORGOTTEN, LEAVER, NAMES, initial_model, update_of
from tests.support.restorable_coordinator import ADMIN_TOKEN, Answer, RestorableCoordinator, RestorableProcess

REQUESTS = "/v1/erasure-requests"
PATIENCE_S = 180
"""For all requests of a walk, on a busy machine."""
NUM_LATE_ATTACKS = 20
"""While requests are carried out and certified."""
ENDED = ("completed", "cancelled")
"""How the requests of these walks may end."""
EXACT: dict[str, Any] = {"recovery_rounds": 1}
SAMPLES: dict[str, Any] = {**EXACT, "scope": "samples"}
APPROXIMATE: dict[str, Any] = {**EXACT, "guarantee": "approximate", "fallback": "retrain"}
WANTED: list[dict[str, Any]] = [
    EXACT,
    EXACT,
    SAMPLES,
    {**APPROXIMATE, "method": "federaser"},
    {**APPROXIMATE, "method": "pga", "params": {"radius": 5.0}},
]
"""How clients, or rows of them, are forgotten."""
KEPT = [None, None, {"dtype": "fp32"}, {"dtype": "int8"}]
"""What runs keep of past rounds, beside the updates themselves."""
TOPOLOGIES: list[dict[str, Any]] = [
    {"kind": "flat"},
    {"kind": "clusters", "num_clusters": 2, "assignment": "random"},
    {"kind": "tree", "shape": "balanced"},
]


@dataclass
class Walk:
    coordinator: RestorableCoordinator
    random: Random
    attacker: str
    """A client's name, or `operator`."""
    federation_id: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    init: str = ""
    known: dict[str, bytes] = field(default_factory=dict)
    """Bytes that the attacker has."""
    names: set[str] = field(default_factory=set)
    """Digests that it has heard of: all that there ever were."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """All that it was ever given."""
    own: set[str] = field(default_factory=set)
    """Digests of the leaver's updates."""
    sent_again: set[str] = field(default_factory=set)
    """Digests of what the attacker sent under its own name."""
    sent: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Digests of honest updates -> who sent them, and the model that they were trained on."""
    favoured: dict[str, Any] = field(default_factory=lambda: EXACT)
    """How it mostly asks to forget."""
    crash_points: list[str] = field(default_factory=list)
    """Where the coordinator dies next, in turn."""
    models: dict[str, bytes] = field(default_factory=dict)
    """What honest clients were given to train on."""
    left_out: dict[str, set[int]] = field(default_factory=dict)
    """The ledgers of the clients."""
    listed: set[str] = field(default_factory=set)
    """Digests that certificates account for."""
    run_ids: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    # --- who talks ----------------------------------------------------------------------------------------------------

    async def call(self, who: str, method: str, path: str, **options: Any) -> Answer:
        answer = await self.coordinator.call(self.tokens[who], method, path, **options)
        self.said.append(f"{who} {method} {path} -> {'died' if answer is None else answer.status_code}")
        assert answer is None or answer.status_code < 500 or answer.status_code == 503, answer.text
        return answer

    async def answered(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        """Asked again whenever the coordinator dies over it, or is not ready."""
        while True:
            answer = await self.call(who, method, path, **options)
            if answer is not None and answer.status_code != 503:
                return answer

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """As the admin, who succeeds."""
        answer = await self.answered("admin", method, path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    async def pages(self, path: str) -> list[Any]:
        return list((await self.json("GET", path, params={"limit": 200}))["items"])

    async def prepare(self, topology: dict[str, Any] | None = None) -> None:
        self.tokens["admin"] = ADMIN_TOKEN
        self.federation_id = (await self.json("POST", "/v1/federations", json={"name": "attacked"}))["id"]
        for name in NAMES:
            path = f"/v1/federations/{self.federation_id}/clients"
            self.tokens[name] = (await self.json("POST", path, json={"name": name}))["token"]
        path = f"/v1/federations/{self.federation_id}/credentials"
        self.tokens["operator"] = (await self.json("POST", path, json={"role": "operator"}))["token"]
        data = initial_model()
        self.init = digests.of_bytes(data)
        self.known[self.init] = data
        await self.call("operator", "PUT", f"/v1/blobs/{self.init}", content=data)
        await self.create_run(self.init, topology or self.random.choice(TOPOLOGIES))

    async def create_run(self, init: str, topology: dict[str, Any], clients: list[str] | None = None) -> Answer:
        spec = {
            "name": "attacked",
            "model": {"name": "custom"},
            "init": init,
            "topology": topology,
            "clients": clients,
            "stop": {"rounds": 3},
            "lease_s": 2.0,
            "history": {"updates": self.random.choice(KEPT)},
        }
        body = {"federation_id": self.federation_id, "spec": spec}
        answer = await self.call("operator", "POST", "/v1/runs", json=body, headers={"Idempotency-Key": str(uuid4())})
        if answer is not None and answer.is_success:
            self.run_ids.append(answer.json()["id"])
        return answer

    # --- honest work --------------------------------------------------------------------------------------------------

    async def work(self, name: str, wait_s: int = 0) -> int:
        """How many tasks it was given."""
        claimed = await self.call(name, "POST", "/v1/tasks/claim", headers={"Prefer": f"wait={wait_s}"})
        if claimed is not None and claimed.status_code == 409:
            await self.leave_out(name)
        tasks = claimed.json()["tasks"] if claimed is not None and claimed.status_code == 200 else []
        for task in tasks:
            if name == self.attacker:
                self.tasks.append(task)
            await self.answer(name, task)
        return len(tasks)

    async def work_together(self) -> None:
        """Whatever there is to do; if there is nothing, it is waited for by one who is neither erased nor attacks."""
        if not sum([await self.work(name) for name in NAMES]):
            await self.work("c", wait_s=1)

    async def leave_out(self, name: str) -> None:
        """Whatever it is told to, from now on."""
        told = await self.call(name, "GET", "/v1/exclusions")
        if told is not None and told.status_code == 200 and (digest := told.json()["digest"]) is not None:
            self.left_out.setdefault(name, set()).update(*(one["samples"] for one in told.json()["items"]))
            await self.call(name, "PUT", "/v1/exclusions/acknowledgement", json={"digest": digest})

    async def answer(self, name: str, task: dict[str, Any]) -> None:
        self.names.add(task["weights"])
        given = await self.call(name, "GET", f"/v1/blobs/{task['weights']}")
        if given is not None and given.status_code == 200:
            self.models[task["weights"]] = given.content
        if task["kind"] in FIGURES_ONLY:
            await self.submit(name, task, None)
            return
        data = update_of(name, task, self.left_out.get(name, ()))
        digest = digests.of_bytes(data)
        self.names.add(digest)
        self.sent.setdefault(digest, set()).add((name, task["weights"]))
        if name == LEAVER:
            self.own.add(digest)
        if name == self.attacker:
            self.known[digest] = data
        if name == "b":  # the others are of an earlier release
            await self.call(name, "PUT", f"/v1/blobs/{digest}", content=data, headers=handing_in(task))
            return
        headers = {"Lethe-Task": task["task_id"]}
        await self.call(name, "PUT", f"/v1/blobs/{digest}", content=data, headers=headers)
        await self.submit(name, task, digest)

    async def submit(self, name: str, task: dict[str, Any], digest: str | None) -> None:
        await self.call(name, "PUT", f"/v1/tasks/{task['task_id']}/result", json=result_of(task, digest))

    # --- the attacker's steps -----------------------------------------------------------------------------------------

    async def attack(self) -> None:
        as_client = [self.claim, self.upload, self.upload_in_parts, self.submit_anything, self.download, self.download]
        as_client.append(self.hand_in_anything)
        as_operator = [self.upload, self.upload_in_parts, self.start_from_anything, self.download, self.download]
        step = self.random.choice(as_operator if self.attacker == "operator" else as_client)
        await step()

    async def claim(self) -> None:
        claimed = await self.call(self.attacker, "POST", "/v1/tasks/claim")
        if claimed is not None and claimed.status_code == 200:
            self.tasks += claimed.json()["tasks"]
            self.names |= {task["weights"] for task in self.tasks}

    async def download(self) -> None:
        wanted = [task["weights"] for task in self.tasks[-2:]] + sorted(self.names)
        if not wanted:
            return
        answer = await self.call(self.attacker, "GET", f"/v1/blobs/{self.random.choice(wanted)}")
        if answer is not None and answer.status_code == 200:
            self.known[digests.of_bytes(answer.content)] = answer.content

    def pick(self) -> tuple[str, bytes, dict[str, str]]:
        """Bytes that it knows, and the task that it says they are for."""
        if self.tasks and self.random.random() < 0.3:
            data = update_of(self.attacker, self.random.choice(self.tasks))
            self.known[digests.of_bytes(data)] = data
        digest, data = self.random.choice(sorted(self.known.items()))
        ids = [task["task_id"] for task in self.tasks] + [str(uuid4())]
        headers = {"Lethe-Task": self.random.choice(ids)} if self.random.random() < 0.8 else {}
        if self.attacker != "operator":
            self.sent_again.add(digest)
        return digest, data, headers

    async def upload(self) -> None:
        digest, data, headers = self.pick()
        for _ in range(self.random.choice([1, 1, 2])):
            await self.call(self.attacker, "PUT", f"/v1/blobs/{digest}", content=data, headers=headers)

    async def upload_in_parts(self) -> None:
        digest, data, headers = self.pick()
        cut = self.random.randrange(1, len(data))
        path, kind = f"/v1/blobs/{digest}", {"Content-Type": "application/partial-upload"}
        for start, end in self.random.choice([[(0, cut)], [(0, cut), (cut, len(data))], [(0, cut), (0, len(data))]]):
            offset = {"Upload-Offset": str(start), "Upload-Length": str(len(data))}
            await self.call(
                self.attacker, "PATCH", path, content=data[start:end], headers={**headers, **kind, **offset}
            )
            await self.call(self.attacker, "HEAD", path, headers=headers)

    async def submit_anything(self) -> None:
        if self.tasks:
            digest = self.random.choice(sorted(self.names | set(self.known)))
            await self.submit(self.attacker, self.random.choice(self.tasks), digest)

    async def hand_in_anything(self) -> None:
        digest, data, _ = self.pick()
        if self.tasks:
            headers = handing_in(self.random.choice(self.tasks))
            await self.call(self.attacker, "PUT", f"/v1/blobs/{digest}", content=data, headers=headers)

    async def start_from_anything(self) -> None:
        digest = self.random.choice(sorted(self.names | set(self.known)))
        if len(self.run_ids) < 3:
            clients = self.random.choice([None, ["b", "c"]])
            await self.create_run(digest, {"kind": "flat"}, clients)

    # --- the walk -----------------------------------------------------------------------------------------------------

    async def erase(self, name: str, wanted: dict[str, Any] | None = None) -> Answer:
        body = {"federation_id": self.federation_id, "subjects": [name], **(wanted or EXACT)}
        if body.get("scope") == "samples":
            body["samples"] = {name: sorted(FORGOTTEN)}
        return await self.call("admin", "POST", REQUESTS, json=body, headers={"Idempotency-Key": f"{name} {uuid4()}"})

    async def step(self) -> None:
        chance = self.random.random()
        if chance < 0.45:
            await self.attack()
        elif chance < 0.75:
            await self.work(self.random.choice([name for name in NAMES if name != self.attacker] * 3 + NAMES))
        elif chance < 0.84:
            await self.work_together()
        elif chance < 0.90:
            wanted = self.random.choice([*WANTED, *[self.favoured] * len(WANTED)])
            await self.erase(self.random.choice([LEAVER, LEAVER, LEAVER, "d"]), wanted)
        elif chance < 0.94:
            self.coordinator.back_up()
        elif chance < 0.97:
            await self.crash()
        elif self.coordinator.backups and self.coordinator.num_restores < 2:
            await self.coordinator.restore(self.random.choice(self.coordinator.backups))

    async def crash(self) -> None:
        if isinstance(self.coordinator, RestorableProcess) and self.crash_points:
            await self.coordinator.arm(self.crash_points[0])
            self.crash_points = self.crash_points[1:] + self.crash_points[:1]

    async def finish(self) -> list[Any]:
        """Everybody works, and what is held is tried again, until every request is carried out; returns them. The
        attacker goes on for a while. A request that was withdrawn because one of before a restore forgot the same
        clients is carried out with that."""
        requests, wanted = await self.pages(REQUESTS), self.favoured
        while not any(LEAVER in one["subjects"] for one in requests):
            await self.erase(LEAVER, wanted)
            requests, wanted = await self.pages(REQUESTS), EXACT
        await self.crash()
        for task in self.tasks[-6:]:
            if self.attacker in NAMES:
                await self.answer(self.attacker, task)
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        for turn in count():
            if turn < NUM_LATE_ATTACKS:
                await self.attack()
            requests = await self.pages(REQUESTS)
            status = {one["id"]: one["status"] for one in requests}
            open_ones = [one for one in requests if status[one["duplicate_of"] or one["id"]] not in ENDED]
            if requests and not open_ones:
                return requests
            for one in open_ones:
                if one["status"] == "requires_action":
                    assert one["reason"], one
                    await self.call("admin", "POST", f"{REQUESTS}/{one['id']}/retry")
            states = [(one["id"], one["status"], one["reason"], one["duplicate_of"]) for one in requests]
            assert asyncio.get_running_loop().time() < deadline, (states, self.said[-40:])
            await self.work_together()
        raise AssertionError


def result_of(task: dict[str, Any], digest: str | None) -> dict[str, Any]:
    return {"lease_token": task["lease_token"], "update": digest, "num_samples": 10}


def handing_in(task: dict[str, Any]) -> dict[str, str]:
    """Headers of an upload that is submitted with it."""
    return {"Lethe-Task": task["task_id"], "Lethe-Result": json.dumps(result_of(task, None))}
