"""What the engine knows: frozen records, one per row, and `State`, the slice of them that a message needs."""

from coordinator.engine.entities.erasure import *  # noqa: F403
from coordinator.engine.entities.state import *  # noqa: F403
from coordinator.engine.entities.storage import *  # noqa: F403
from coordinator.engine.entities.training import *  # noqa: F403
