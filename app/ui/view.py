"""What a page is, and what it is given: a view declares the controls it needs and draws from a Page."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import app.views

if TYPE_CHECKING:
    from app.ui.selection import Source
    from focus_core.trace import Trace

SECTIONS = ("Start", "See", "Methods", "Decide")


@dataclass(frozen=True)
class Needs:
    """The shared sidebar controls that a view uses; a control that no view on screen needs is not drawn.

    Attributes:
        model: the model.
        text: the text.
        variant: the attention, its adapter and its settings. With ``text`` the page gets a Trace.
        layer: the shown layer.
        head: the shown query head, or all. A page that shows one head says here which it is while none is chosen: the
            control then has that one, and no mean of all.
    """

    model: bool = False
    text: bool = False
    variant: bool = False
    layer: bool = False
    head: bool | Callable[[Page], int] = False


@dataclass(frozen=True)
class View:
    """One page. Every module in ``app/views`` defines one as ``VIEW``; there is no second list.

    Attributes:
        key: the page's address (``/compare``) and prefix of its widget keys.
        title: its name in the navigation, one or two words.
        section: one of ``SECTIONS``.
        icon: a Material symbol (``:material/compare:``).
        needs: the shared sidebar controls it uses.
        render: draws it.
        order: place within its section; the first view of all is where the app starts.
    """

    key: str
    title: str
    section: str
    icon: str
    needs: Needs
    render: Callable[[Page], None]
    order: int = 50


@dataclass(frozen=True)
class TextChoice:
    """The text that is selected: a shipped passage (``name`` set) or the user's own (``name`` None).

    ``limit`` is the number of first tokens that are taken; None takes all.
    """

    name: str | None
    title: str
    text: str
    limit: int | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """As a request names it: a shipped one by its name, any other by itself."""
        return {"text_name": self.name, "text": None if self.name else self.text}


@dataclass(frozen=True)
class Page:
    """Everything a view may draw from: the engine and what the sidebar selected.

    Attributes:
        engine: the engine client (``submit``, ``get``, ``cancel``, ``estimate``, ``status``).
        session: this browser session's id, for ``engine.submit(session=...)``.
        model: catalog name, Hugging Face id or folder.
        text: the selected text; None when the view needs none or none is given yet.
        variant: name of the selected variant.
        config: its settings, as plain values.
        adapter: name of the shipped adapter or path that the variant runs with; None when it needs none.
        layer: shown layer.
        head: shown query head; None is all heads.
        source: where the shown Trace comes from, and whether it answers the present selection; None without a Trace.
        notices: sentences about links and settings that could not be used as given.
    """

    engine: Any
    session: str
    model: str
    text: TextChoice | None = None
    variant: str = "focus"
    config: dict[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    layer: int = 0
    head: int | None = None
    source: Source | None = None
    notices: tuple[str, ...] = ()

    @property
    def trace(self) -> Trace | None:
        """The Trace to draw: live, recorded, or the last one while new settings have not run."""
        return self.source.trace if self.source else None

    def request(self, layers: Any = "all") -> dict[str, Any]:
        """The ``trace`` job that answers the present selection."""
        text = self.text
        request = {
            "model": self.model,
            **(text.fields if text else {"text_name": None, "text": None}),
            "variant": self.variant,
            "config": dict(self.config),
            "adapter": self.adapter,
            "layers": layers,
        }
        return request if text is None or text.limit is None else {**request, "limit": text.limit}


def discover() -> list[View]:
    """Every module's ``VIEW`` in ``app/views``, by section and order."""
    found = [
        importlib.import_module(f"app.views.{module.name}").VIEW
        for module in pkgutil.iter_modules(app.views.__path__)
        if not module.name.startswith("_")
    ]
    return sorted(found, key=lambda view: (SECTIONS.index(view.section), view.order, view.title))
