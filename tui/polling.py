"""The strip's own sensor thread, for the time when no run is live to share its samples."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..core.machine.telemetry.sample import Sample

if TYPE_CHECKING:
    from ..core.machine.telemetry.sampler import Sampler


class StripSampler:
    """Starts a sampler when first asked for a sample, so that the first frame waits for none."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None
        self._newest: deque[Sample] = deque(maxlen=1)

    def latest(self) -> Sample | None:
        """The newest sample that was not taken yet, or None."""
        if self._sampler is None:
            from ..core.machine.telemetry.sampler import Sampler

            self._sampler = Sampler(self._newest.append, interval_seconds=1.0)
            self._sampler.start()
        return self._newest.pop() if self._newest else None

    def stop(self) -> None:
        """Stop polling; the next `latest` starts again."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
