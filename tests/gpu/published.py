"""Published step times that a validation run is held against.

H100 80 GB, batch 4, context 512, milliseconds, five warm-up and ten measured steps, from two
public write-ups of Stanford CS336 assignment 2: TobinZuo/assignment2-systems (torch 2.5.1,
SXM) and brandon-snider/cs336-a2 (whose forward+backward is a sum). None where not reported.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One cell as two write-ups measured it, milliseconds."""

    first: float | None
    second: float | None


H100_CONTEXT_512: dict[tuple[str, str, str], Published] = {
    ("small", "fp32", "inference"): Published(22.5, 20.0),
    ("medium", "fp32", "inference"): Published(60.4, 56.0),
    ("large", "fp32", "inference"): Published(131.7, 130.6),
    ("xl", "fp32", "inference"): Published(None, 249.1),
    ("2.7B", "fp32", "inference"): Published(345.4, 362.5),
    ("small", "fp32", "forward+backward"): Published(67.7, 62.0),
    ("medium", "fp32", "forward+backward"): Published(178.3, 170.9),
    ("large", "fp32", "forward+backward"): Published(398.4, 390.1),
    ("xl", "fp32", "forward+backward"): Published(None, 752.6),
    ("2.7B", "fp32", "forward+backward"): Published(1071.0, 1078.8),
    ("small", "bf16", "inference"): Published(15.3, 22.0),
    ("medium", "bf16", "inference"): Published(28.8, 43.7),
    ("large", "bf16", "inference"): Published(52.9, 67.0),
    ("xl", "bf16", "inference"): Published(None, 90.3),
    ("2.7B", "bf16", "inference"): Published(86.2, 84.2),
    ("small", "bf16", "forward+backward"): Published(45.9, 49.6),
    ("medium", "bf16", "forward+backward"): Published(88.6, 98.1),
    ("large", "bf16", "forward+backward"): Published(162.4, 146.4),
    ("xl", "bf16", "forward+backward"): Published(None, 227.4),
    ("2.7B", "bf16", "forward+backward"): Published(244.9, 233.7),
}
