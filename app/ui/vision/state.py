"""The controls of the page Vision: in the session and in the address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.vision import SHARE, WEIGHT
from app.ui import links
from focus_core.vision.models import VisionModelInfo

TAB, MAPS = "vision_tab", "vision_maps"
LEFT, RIGHT, IMAGE, LAYER, HEAD, TOKEN, SHOW, UNIT = (
    f"vision_{name}" for name in ("left", "right", "image", "layer", "head", "token", "show", "unit")
)
ROW, ROLLOUT = "One row", "Rollout"


@dataclass(frozen=True)
class Shown:
    """What of the look is drawn.

    Attributes:
        layer: from 0.
        head: from 0.
        query: token whose row it is; 0 is the class token.
        rollout: whether all layers are drawn together instead.
        unit: of the weights.
        grid: patches along a side.
    """

    layer: int
    head: int
    query: int
    rollout: bool
    unit: str
    grid: int

    @property
    def whose(self) -> str:
        """The query in words."""
        if self.query == 0:
            return "the class token"
        return f"the patch in row {(self.query - 1) // self.grid + 1}, column {(self.query - 1) % self.grid + 1}"

    @property
    def where(self) -> str:
        """Layer and head in words."""
        return f"layer {self.layer}, head {self.head}"


def models(infos: list[VisionModelInfo], notices: list[str]) -> list[VisionModelInfo]:
    """Draw the two menus of models; softmax and KArAt of one size unless others are chosen.

    Both read the same image: the second menu lists those that read what the first reads.
    """
    known = {info.name: info for info in infos}
    first = infos[0]
    links.check(LEFT, list(known), first.title, notices, lambda n: known[n].title if n in known else n, bound=False)
    if st.session_state.get(LEFT) not in known:
        st.session_state[LEFT] = first.name
    left = known[_menu("Left", list(known), known, LEFT)]
    same = [i for i in infos if (i.data, i.config.image) == (left.data, left.config.image)]
    names = {info.name: info for info in same}
    usual = _other(left, same)
    links.check(RIGHT, list(names), usual.title, notices, lambda n: known[n].title if n in known else n, bound=False)
    if st.session_state.get(RIGHT) not in names:
        st.session_state[RIGHT] = usual.name
    right = names[_menu("Right", list(names), names, RIGHT)]
    links.write(LEFT, "" if left == first else left.name)
    links.write(RIGHT, "" if right == _other(left, same) else right.name)
    return [left] if left == right else [left, right]


def _other(left: VisionModelInfo, same: list[VisionModelInfo]) -> VisionModelInfo:
    def unlike(info: VisionModelInfo) -> tuple[bool, bool, bool]:
        a, b = info.config.attention, left.config.attention
        return a.kind == b.kind, info.config.width != left.config.width, (a.projection, a.scope) != ("none", "block")

    others = [info for info in same if info != left]
    return min(others, key=unlike) if others else left


def _menu(label: str, options: list[str], known: dict[str, VisionModelInfo], key: str) -> str:
    def title(name: str) -> str:
        info = known[name]
        return f"{info.title}, {100 * info.accuracy:.1f} % right"

    return str(
        st.selectbox(
            label,
            options,
            format_func=title,
            key=key,
            label_visibility="collapsed",
            width="stretch",
            persist_state="session",
        )
    )


def shown(infos: list[VisionModelInfo], notices: list[str]) -> Shown:
    """Draw layer, head, row or rollout, and unit; and read the picked patch."""
    depth, heads = (min(getattr(i.config, n) for i in infos) for n in ("depth", "heads"))
    grid = infos[0].config.image // infos[0].config.patch
    layer = _number("Layer", depth, depth - 1, LAYER, notices, "Of the vision transformer, the first is 0.")
    head = _number("Head", heads, 0, HEAD, notices, "Every head has an attention, and in KArAt functions, of its own.")
    show = _choice(
        "Shown",
        (ROW, ROLLOUT),
        SHOW,
        notices,
        "One row of one head, or all layers multiplied together (signs left out).",
    )
    unit = _choice(
        "As",
        (SHARE, WEIGHT),
        UNIT,
        notices,
        "Weights are what multiplies the values. Shares divide them by the sum of their sizes, so that models whose "
        "rows add up differently can be compared.",
    )
    query = _token(grid, notices)
    links.write(TOKEN, "" if query == 0 else str(query))
    return Shown(layer, head, query, show == ROLLOUT, unit, grid)


def _number(label: str, count: int, usual: int, key: str, notices: list[str], help: str) -> int:
    options = list(range(count))
    links.check(key, options, usual, notices, bound=False)
    if st.session_state.get(key) not in options:
        st.session_state[key] = usual
    chosen = st.segmented_control(label, options, key=key, required=True, help=help, persist_state="session")
    found = usual if chosen is None else int(chosen)
    links.write(key, "" if found == usual else str(found))
    return found


def _choice(label: str, options: tuple[str, ...], key: str, notices: list[str], help: str) -> str:
    links.check(key, options, options[0], notices)
    chosen = st.segmented_control(
        label, list(options), default=options[0], required=True, key=key, bind="query-params", help=help
    )
    return chosen or options[0]


def _token(grid: int, notices: list[str]) -> int:
    raw, most = links.opening(TOKEN), grid * grid
    if raw and (given := links.number(raw, most)) is not None:
        pick(given)
    elif raw:
        notices.append(f"In the link, patch {raw[:60]} does not exist; shown is the class token's row.")
    state: Any = st.session_state.get(MAPS)
    picked = state.get("picked") if state else None
    if picked is not None and picked != st.session_state.get("_vision_seen"):
        st.session_state["_vision_seen"] = picked
        pick(int(picked))
    query = int(st.session_state.get("_vision_token", 0))
    return query if 0 <= query <= most else 0


def pick(token: int) -> None:
    """Show a token's row."""
    st.session_state["_vision_token"] = token
