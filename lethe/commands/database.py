"""`lethe db`: the schema of the coordinator's database."""

from __future__ import annotations

import asyncio

import typer

from lethe.database_faults import database_asked
from lethe.process import DatabaseUrl, Home, open_coordinator, settings_from, upgrade_schema
from lethe.target import AsJson, examples

app = typer.Typer(no_args_is_help=True, help="The database's schema (run where the coordinator runs).")


@app.command(**examples("LETHE_DATABASE_URL=postgresql+asyncpg://lethe@db/lethe lethe db upgrade"))
def upgrade(home: Home = None, database_url: DatabaseUrl = None) -> None:
    """Bring the schema up to this release. Nothing happens when it is."""
    print("schema", asyncio.run(_revisions(home=home, database_url=database_url, may_upgrade=True))["current"])


@app.command(**examples("lethe db current", "lethe db current --json"))
def current(home: Home = None, database_url: DatabaseUrl = None, json: AsJson = False) -> None:
    """The schema's revision, and the one that this release needs."""
    from lethe.printing import print_record

    print_record(asyncio.run(_revisions(home=home, database_url=database_url, may_upgrade=False)), as_json=json)


async def _revisions(*, may_upgrade: bool, **options: object) -> dict[str, str | None]:
    settings = settings_from(**options)
    from coordinator.store import schema

    coordinator = open_coordinator(settings)
    try:
        if may_upgrade:
            await upgrade_schema(coordinator)
        with database_asked():
            return {
                "current": await schema.current(coordinator.database),
                "newest": schema.newest(),
                "fingerprint": await schema.fingerprint(coordinator.database),
                "newest_fingerprint": schema.release_fingerprint(),
                "database": coordinator.database.url.render_as_string(hide_password=True),
            }
    finally:
        await coordinator.database.close()
