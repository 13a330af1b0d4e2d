"""What was decided, in the past tense. Events carry what `evolve` needs; the journal keeps ids and digests of them."""

from coordinator.engine.events.cohorts import *  # noqa: F403
from coordinator.engine.events.cohorts import CohortEvent, JobEvent
from coordinator.engine.events.erasure import *  # noqa: F403
from coordinator.engine.events.erasure import ErasureEvent, UnlearningEvent
from coordinator.engine.events.training import *  # noqa: F403
from coordinator.engine.events.training import RoundEvent, RunEvent, TaskEvent

Event = RunEvent | RoundEvent | TaskEvent | CohortEvent | JobEvent | UnlearningEvent | ErasureEvent
