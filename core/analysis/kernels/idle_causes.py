"""Names of what a device waited for. Light, so that a rule that names one loads no numpy."""

from __future__ import annotations

HOST_LATE = "host had not launched yet"


ON_SYNC = "waiting on a sync"


LAUNCHING = "host inside the launch call"


BETWEEN = "between launched kernels"


UNKNOWN = "launch of the next kernel not recorded"


OUTSIDE_OPERATORS = "host outside operators (Python, dispatch)"
