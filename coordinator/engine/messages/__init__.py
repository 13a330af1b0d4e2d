"""What can happen to a federation, as values. The shell hands them to `decide`, one at a time."""

from coordinator.engine.messages.erasure import *  # noqa: F403
from coordinator.engine.messages.message import *  # noqa: F403
from coordinator.engine.messages.programs import *  # noqa: F403
from coordinator.engine.messages.runs import *  # noqa: F403
from coordinator.engine.messages.work import *  # noqa: F403
