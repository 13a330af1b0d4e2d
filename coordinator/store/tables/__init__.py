"""The tables. Each invariant that must survive a bug in the code above stands here as a constraint, with its reason."""

from coordinator.store.tables.accounts import *  # noqa: F403
from coordinator.store.tables.act_log import *  # noqa: F403
from coordinator.store.tables.columns import *  # noqa: F403
from coordinator.store.tables.erasure import *  # noqa: F403
from coordinator.store.tables.evidence import *  # noqa: F403
from coordinator.store.tables.journals import *  # noqa: F403
from coordinator.store.tables.models import *  # noqa: F403
from coordinator.store.tables.signing_in import *  # noqa: F403
from coordinator.store.tables.taint import *  # noqa: F403
from coordinator.store.tables.training import *  # noqa: F403
