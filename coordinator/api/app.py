"""The API as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any, Final

import structlog
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from coordinator.api import (
    acts,
    blobs,
    browser_sessions,
    checkpoints,
    clients,
    documentation,
    erasure_decisions,
    erasures,
    events,
    exclusions,
    federations,
    hand_overs,
    health,
    incentives,
    me,
    openid,
    pages,
    problems,
    progress,
    runs,
    superseded_models,
    system,
    views,
    web,
    work,
)
from coordinator.api.auth import Authenticator
from coordinator.api.claim_probe import ClaimProbe
from coordinator.api.context import Context
from coordinator.api.hot_routes import HotRoutes
from coordinator.api.limits import Limits
from coordinator.api.metrics import Metrics
from coordinator.api.middleware import RequestMiddleware
from coordinator.runtime.accounts import ensure_admin
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.evidence import described
from coordinator.runtime.signing import EvidenceLost
from coordinator.store import schema
from coordinator.store.database import Unavailable
from coordinator.tombstones.port import LogCorrupt
from services.audit.keys import KeyUnreadable
from services.wire.v1.resources import Problem

log = structlog.get_logger()
LOOK_AGAIN_S: Final = 1.0
_ROUTERS: Final = (
    work.router,
    exclusions.router,
    superseded_models.router,
    blobs.router,
    me.router,
    federations.router,
    clients.router,
    incentives.router,
    runs.router,
    progress.router,
    views.router,
    checkpoints.router,
    events.router,
    erasures.router,
    erasure_decisions.router,
    pages.router,
    acts.router,
    system.router,
    browser_sessions.router,
    browser_sessions.strangers,
    openid.router,
    hand_overs.router,
    hand_overs.open_router,
    health.router,
    documentation.router,
    web.router,
    web.pages,  # last: what nobody else answers
)


class Api(FastAPI):
    """FastAPI with the request middleware and the hot routes before all its own machinery."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._outermost = RequestMiddleware(HotRoutes(super().__call__))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._outermost(scope, receive, send)


def create_app(coordinator: Coordinator) -> FastAPI:
    """An app that starts and closes the coordinator with its lifespan."""
    app = assemble()
    metrics = Metrics(coordinator.supervisor, coordinator.set_aside)
    coordinator.observers.append(metrics.observe)
    app.state.context = Context(
        coordinator,
        Authenticator(coordinator.database, coordinator.bus, coordinator.browser_sessions),
        ClaimProbe(coordinator.database, coordinator.set_aside),
        metrics,
        Limits(coordinator.settings),
    )
    return app


def assemble() -> FastAPI:
    """Routes and their documentation, without a coordinator behind them."""
    app = Api(
        title="Lethe",
        version=metadata.version("lethe"),
        description="The coordinator for federated learning that can forget. Every error is a problem document.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    for route in (route for router in _ROUTERS for route in router.routes):
        if isinstance(route, APIRoute):
            route.unique_id = route.name
        app.router.routes.append(route)  # as it is: `include_router` builds each anew, and looks for it twice
    problems.install(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            license_info=app.license_info,
            routes=app.routes,
            separate_input_output_schemas=False,
        )
        schemas = document["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        _tell_object_defaults(schemas)
        app.openapi_schema = document
    return app.openapi_schema


def _tell_object_defaults(schema: Any) -> None:
    """Generators of clients lose a property, or the whole operation, where a reference or a union has an object as its
    default: it is said in the description instead."""
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if isinstance(part, dict) and isinstance(part.get("default"), dict) and ("$ref" in part or "oneOf" in part):
            said = f"When absent: `{json.dumps(part.pop('default'))}`."
            part["description"] = " ".join(filter(None, (part.get("description"), said)))
        _tell_object_defaults(part)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    opening = None
    if not await _try_to_open(context):
        opening = asyncio.create_task(_keep_trying(context))
    try:
        yield
    finally:
        if opening is not None:
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
        context.unready_because = "the coordinator is stopping"
        await context.coordinator.close()


async def _try_to_open(context: Context) -> bool:
    """Ready once the schema is current and somebody can log in; only then does background work begin."""
    coordinator = context.coordinator
    try:
        fault = await schema.fault(coordinator.database)
        reason = None if fault is None else f"{fault.reason}: {fault.next_step}"
        if fault is None:
            await ensure_admin(coordinator)
            await coordinator.start_api()
    except Unavailable:
        reason = "the database cannot be reached"
    except (EvidenceLost, KeyUnreadable, LogCorrupt) as error:
        reason = f"it cannot start: {described(error)}"
    except OSError as error:
        reason = f"it cannot start: {error.strerror or error}"
    if reason is not None:
        if reason != context.unready_because:
            log.warning("coordinator.waits", reason=reason)
        context.unready_because = reason
        return False
    context.unready_because = None
    log.info("coordinator.ready")
    return True


async def _keep_trying(context: Context) -> None:
    is_open = False
    while not is_open:
        await asyncio.sleep(LOOK_AGAIN_S)
        try:
            is_open = await _try_to_open(context)
        except Exception as error:
            log.error("coordinator.waits", exc_info=error)
            context.unready_because = f"it cannot start: {type(error).__name__}; its log has the trace"
