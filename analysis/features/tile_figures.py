"""Pictures and sentences of one tile's steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis import palette
from analysis.features.tiles import STAGES, Tile, Tiles
from analysis.numbers import percent, sig3
from analysis.style import SEQUENTIAL, quiet


def tile_figure(walked: Tiles, number: int, stage: int, names: list[str]) -> go.Figure:
    """Above the queries' scores over the keys that have been looked at, the tile at work framed; below their output.

    Args:
        walked: of :func:`analysis.features.tiles.walk`.
        number: the tile at work.
        stage: how far it is, of ``STAGES``.
        names: the keys as people read them.
    """
    tile, last = walked.tiles[number], len(STAGES) - 1
    scores = np.full((len(tile.rows), len(walked.keys)), np.nan)
    for done in walked.tiles[: number + (stage >= 2)]:
        at = slice(done.cols.start - walked.keys.start, done.cols.stop - walked.keys.start)
        scores[:, at] = np.where(np.isinf(done.scores), np.nan, done.scores)
    output = np.full(scores.shape, np.nan)
    if ended := walked.tiles[: number + (stage >= last)]:
        before = ended[-1]
        shares = before.output / np.where(before.total == 0, 1, before.total)[:, None]
        output = np.where(shares > 0, shares, np.nan)
    every = np.concatenate([t.scores[np.isfinite(t.scores)] for t in walked.tiles])
    figure = make_subplots(
        2, 1, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=("Scores", "Output so far, over its running sum")
    )
    panels = (
        (scores, float(every.min(initial=0)), float(every.max(initial=0)) or 1.0, "score"),
        (output, 0.0, float(walked.attention.max()) or 1.0, "share"),
    )
    for row, (values, low, high, what) in enumerate(panels, start=1):
        figure.add_heatmap(
            z=values,
            x=np.arange(len(walked.keys)),
            y=np.arange(len(tile.rows)),
            zmin=low,
            zmax=high,
            colorscale=SEQUENTIAL,
            showscale=False,
            texttemplate="%{z:.2f}",
            textfont={"size": 11},
            hovertemplate=f"key %{{x}}, query %{{y}}: {what} %{{z:.3f}}<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
            row=row,
            col=1,
        )
    left = tile.cols.start - walked.keys.start
    figure.add_shape(
        type="rect",
        x0=left - 0.5,
        x1=left + len(tile.cols) - 0.5,
        y0=-0.5,
        y1=len(tile.rows) - 0.5,
        line={"color": palette.LOST, "width": 3},
        row=1,
        col=1,
    )
    quiet(figure, height=150 + 72 * len(tile.rows))
    figure.update_layout(margin={"l": 90, "r": 12, "t": 28, "b": 74})
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_xaxes(showgrid=False, range=[-0.6, len(names) - 0.4])
    figure.update_xaxes(tickvals=np.arange(len(names)), ticktext=names, tickangle=-40, row=2, col=1)
    queries = [names[row - walked.keys.start] for row in tile.rows]
    figure.update_yaxes(
        tickvals=np.arange(len(queries)), ticktext=queries, range=[len(queries) - 0.4, -0.6], showgrid=False
    )
    return figure


def tile_sentence(tile: Tile, stage: int) -> str:
    """What one stage of a tile has done, in numbers."""
    rows, cols = len(tile.rows), len(tile.cols)
    if stage == 0:
        stored = sum(map(len, tile.postings.values()))
        return f"The {cols} keys of this tile hold {stored} features, filed under {len(tile.postings)} dimensions."
    if stage == 1:
        possible = rows * cols
        met = len({hit[:2] for hit in tile.hits})
        return (
            f"Every query looks its own features up and meets keys in {len(tile.hits)} places: {met} of {possible} "
            "pairs share a feature."
        )
    if stage == 2:
        seen = np.isfinite(tile.scores)
        none = int((seen & (tile.scores == 0)).sum())
        return f"The products of each pair are summed; {none} of {int(seen.sum())} pairs that may be seen have score 0."
    if stage == 3:
        grown = int((tile.maximum > tile.before).sum())
        return f"{grown} of {rows} running maxima grow, so that no exponential overflows."
    faded = [value for value in tile.faded if 0 < value < 1]
    fade = f"an earlier sum shrinks to {percent(min(faded))} where its maximum grew most, " if faded else ""
    return (
        f"The weights exp(score − maximum) are added: {fade}the last query's sum is now {sig3(float(tile.total[-1]))}."
    )


def tile_table(tile: Tile, stage: int, names: list[str]) -> pd.DataFrame:
    """The running state of every query, as far as the stage has come."""

    def shown(values: np.ndarray, known: bool) -> list[str]:
        return [("−∞" if np.isinf(v) else sig3(float(v)).replace("-", "−")) if known else "" for v in values]

    return pd.DataFrame(
        {
            "query": names,
            "maximum before": shown(tile.before, True),
            "maximum": shown(tile.maximum, stage >= 3),
            "earlier sum ×": shown(tile.faded, stage >= 4),
            "added": shown(tile.added, stage >= 4),
            "running sum": shown(tile.total, stage >= 4),
        }
    )
