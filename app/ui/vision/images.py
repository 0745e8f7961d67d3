"""Which image is looked at: a shipped one from the strip, or a file of one's own."""

from __future__ import annotations

import numpy as np
import streamlit as st

from analysis.vision import converted
from app.ui import links
from app.ui.guard import plain, show_error
from app.ui.vision.gallery import gallery, gallery_data
from app.ui.vision.source import Images, Picture, images_of
from app.ui.vision.state import IMAGE
from focus_core.errors import FocusError
from focus_core.vision.models import VisionModelInfo

FILE, STRIP, OWN = "vision_file", "vision_strip", "_vision_own"
MAX_MEGABYTES = 20
FIRST_CLASS = 9
"""The image of the bare address is of this class, where there are as many."""


def choose(info: VisionModelInfo, notices: list[str]) -> Picture | None:
    """Draw the strip and the upload; None where there is no image."""
    images = images_of(info.data)
    strip, upload = st.columns([6, 1.15], gap="medium", vertical_alignment="bottom")
    with st.container(key="vision_said"):
        own = _own(info)
    place = _place(images, notices) if images is not None else None
    with upload:
        _upload()
    with strip:
        if images is None:
            st.info("The test images are not on this machine: open an image of your own.", icon=":material/image:")
        else:
            here = None if own is not None else place
            gallery(gallery_data(images.pixels, images.labels, images.names, here), key=STRIP, on_pick=_pick)
    if own is not None:
        return own
    if images is None or place is None:
        return None
    links.write(IMAGE, "" if place == _first(images) else str(place + 1))
    label = int(images.labels[place])
    return Picture(images.pixels[place][None], place, label, f"{images.names[label]}, test image {place + 1}")


def _first(images: Images) -> int:
    """The bare address's image."""
    wanted = min(FIRST_CLASS, len(images.names) - 1)
    return int(np.flatnonzero(images.labels == wanted)[0])


def _place(images: Images, notices: list[str]) -> int:
    raw = links.opening(IMAGE)
    if raw and (given := links.number(raw, len(images.labels))) is not None:
        st.session_state["_vision_image"] = given - 1
    elif raw:
        notices.append(f"In the link, image {raw[:60]} does not exist: there are 1 to {len(images.labels)}.")
    place = st.session_state.get("_vision_image")
    return place if place is not None and place < len(images.labels) else _first(images)


def _pick(place: int) -> None:
    st.session_state["_vision_image"] = place
    st.session_state.pop(OWN, None)


def _upload() -> None:
    with st.popover("Your own", icon=":material/add_photo_alternate:", width="stretch"):
        st.file_uploader(
            "Open an image",
            type=["png", "jpg", "jpeg", "webp", "bmp", "gif"],
            key=FILE,
            on_change=_opened,
            max_upload_size=MAX_MEGABYTES,
            help="Any size and colours: one piece of clothing on a plain ground does best. It stays on this machine.",
        )
        if OWN in st.session_state:
            st.button("Back to the test images", key="vision_own_close", icon=":material/undo:", on_click=_close)


def _opened() -> None:
    file = st.session_state.get(FILE)
    if file is None:
        st.session_state.pop(OWN, None)
    else:
        st.session_state[OWN] = (file.name, file.getvalue())


def _close() -> None:
    st.session_state.pop(OWN, None)


def _own(info: VisionModelInfo) -> Picture | None:
    """One's own image as the models read it, with what was changed said."""
    if OWN not in st.session_state:
        return None
    name, data = st.session_state[OWN]
    try:
        pixels, said = converted(data, info.config.image, info.config.channels)
    except FocusError as error:
        show_error(f"{name[:60]}: {error.message}", error.hint)
        return None
    links.write(IMAGE, "")
    if said:
        st.caption(f":material/photo_size_select_small: {plain(name[:60])}: {plain(', '.join(said))}.")
    return Picture(pixels, None, None, name[:60])
