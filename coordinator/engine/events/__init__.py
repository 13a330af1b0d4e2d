"""What was decided, in the past tense. Events carry what `evolve` needs; the journal keeps ids and digests of them."""

from coordinator.engine.events.cohorts import *  # noqa: F403
from coordinator.engine.events.cohorts import CohortEvent
from coordinator.engine.events.erasure import *  # noqa: F403
from coordinator.engine.events.erasure import ErasureEvent
from coordinator.engine.events.training import *  # noqa: F403
from coordinator.engine.events.training import TrainingEvent

Event = TrainingEvent | CohortEvent | ErasureEvent
