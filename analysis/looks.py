"""How many groups a query looks into where an adapter has a table: its own number for each layer and router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from focus_core import assets

Table = list[list[int]]


def table_of(adapter: str | None, config: Mapping[str, Any] | None) -> Table | None:
    """The table that a run with these settings used; None where one number is for all.

    Args:
        adapter: the adapter's name; one that is not here has no table that could be told.
        config: the run's settings. ``query_topk`` stands for the table where it is the one that ships with it.
    """
    entry = assets.adapters().get(adapter) if adapter else None
    if entry is None or (config or {}).get("looks", "adapter") != "adapter":
        return None
    looks = (entry["config"].get("config") or {}).get("looks")
    usual = (entry["config"].get("serve") or {}).get("query_topk")
    return looks if looks and (config or {}).get("query_topk", usual) == usual else None


def span(table: Table) -> str:
    """Its fewest and most groups: ``0–8``."""
    flat = [number for row in table for number in row]
    return f"{min(flat)}–{max(flat)}" if min(flat) < max(flat) else str(flat[0])


def mean(table: Table) -> float:
    """Its mean number of groups."""
    flat = [number for row in table for number in row]
    return sum(flat) / len(flat)


def words(table: Table) -> str:
    """It in words, for a caption."""
    return f"a query looks into {span(table)} ({mean(table):.1f} in mean: each layer and KV head has its own number)"
