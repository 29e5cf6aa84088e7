"""Causes of idle time. Import-light: rules use these names without loading numpy."""

from __future__ import annotations

import re

HOST_LATE = "host had not launched yet"
ON_SYNC = "waiting on a sync"
LAUNCHING = "host inside the launch call"
BETWEEN = "between launched kernels"
UNKNOWN = "launch of the next kernel not recorded"
OUTSIDE_OPERATORS = "host outside operators (Python, dispatch)"

# Records and exports contain the names above; people read these.
LABELS = {
    HOST_LATE: "waiting for the CPU to launch",
    ON_SYNC: "CPU inside a synchronization",
    LAUNCHING: "CPU inside the launch call",
    UNKNOWN: "cause unknown",
    OUTSIDE_OPERATORS: "Python / framework overhead (incl. DataLoader)",
}

LAUNCH = re.compile(r"Launch(?!HostFunc)|Memcpy|Memset|Enqueue")
"""Names of calls that launch work on a device."""

SYNC = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$")
"""Names of calls that return when the device has finished."""


def idle_label(cause: str) -> str:
    """Return the text to show for a cause."""
    return LABELS.get(cause, cause)
