"""The engine keeps every law under whatever may happen to it, and always comes to an end."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.property.engine_machine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
