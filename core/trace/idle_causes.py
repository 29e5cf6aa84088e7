"""Names of what a device waited for. Light, so that a rule that names one loads no numpy."""

from __future__ import annotations

import re

HOST_LATE = "host had not launched yet"


ON_SYNC = "waiting on a sync"


LAUNCHING = "host inside the launch call"


BETWEEN = "between launched kernels"


UNKNOWN = "launch of the next kernel not recorded"


OUTSIDE_OPERATORS = "host outside operators (Python, dispatch)"


LAUNCH = re.compile(r"Launch(?!HostFunc)|Memcpy|Memset|Enqueue")
"""In the names of calls that launch work on a device."""


SYNC = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$")
"""In the names of calls that return when a device has done what it was given."""
