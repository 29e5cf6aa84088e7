"""Three scripts of the atlas, sick and healthy; `make atlas` runs all, with a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.atlas import __main__ as atlas
from tests.atlas.diseases import DISEASES, UNSEEN


@pytest.mark.parametrize("variant", atlas.VARIANTS)
@pytest.mark.parametrize("script", ["print_each_step", "gc_pauses", "stalling_checkpoints"])
def test_a_script(
    script: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atlas, "FOLDER", tmp_path)
    (disease,) = (disease for disease in DISEASES if disease.script == script)
    line = atlas.run(disease, variant, window="")
    found = atlas.spoken(disease, variant)
    assert found is not None, line
    assert set(disease.rules) <= {row.rule for row in found} if variant == "sick" else not found


def test_each_script_has_a_row() -> None:
    scripts = {path.stem for path in (Path(__file__).parent / "scripts").glob("*.py")}
    assert {disease.script for disease in (*DISEASES, *UNSEEN)} == scripts - {"training"}
