"""The app's stylesheet, which parses each source once."""

from __future__ import annotations

from textual.css.stylesheet import Stylesheet


class OnceParsed(Stylesheet):
    """Textual parses every source anew, several times, whenever a screen is first shown: in a
    fresh stylesheet without a cache, and after clearing the cache for variables that did not
    change. Here a source is parsed when it comes, and again when the theme changes."""

    def __init__(self, *, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._known = variables

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._known:
            self._known = variables
            super().set_variables(variables)

    def reparse(self) -> None:
        # Rules replace the old ones only when all of them could be parsed.
        self.parse()
