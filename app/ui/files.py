"""A run as files: its Trace, its report, and a Trace from elsewhere."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.ui import opened_files, reopen, report
from app.ui.save import file_name
from app.ui.view import Page


def run_files(page: Page) -> None:
    """Draw the popover that saves the shown run and opens another; files are made when they are asked for."""
    opened_files.sweep()
    source = page.source
    with st.popover("Save or open a run", icon=":material/folder_open:", width="stretch"):
        if source is not None:
            path = Path(source.path)
            p = source.trace.provenance
            name = file_name(f"{p.get('text_name') or 'own text'} {p['model'].rsplit('/')[-1]} {p['variant']}")
            st.download_button(
                f"Trace file ({path.stat().st_size / 1e6:.1f} MB)",
                path.read_bytes,
                f"{name}.npz",
                "application/octet-stream",
                key="save_trace",
                icon=":material/download:",
                on_click="ignore",
                width="stretch",
                help="Everything that was recorded. It opens here and in Python without a model or a GPU. "
                "It holds the text.",
            )
            st.download_button(
                "Report (one HTML file)",
                lambda: report.page_of(source.trace, page.layer, page.head),
                f"{name}.html",
                "text/html",
                key="save_report",
                icon=":material/description:",
                on_click="ignore",
                width="stretch",
                help="Its figures, mask, heads and text in one page that works with the network off: "
                "under 1 MB, about 2 MB for 8,192 tokens.",
            )
        st.file_uploader(
            "Open a Trace file",
            type="npz",
            key=reopen.FILE,
            on_change=reopen.from_file,
            max_upload_size=reopen.MAX_MEGABYTES,
            help="A file that was saved here or written by `python -m focus_core trace`. No model is needed to look.",
        )
