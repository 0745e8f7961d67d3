"""Groups without training: k-means of what each layer's attention reads, saved as a user's adapter.

Request: ``{model, groups, name}``. Result: ``{name}`` of the adapter, which is in every list from then on.
"""

from __future__ import annotations

from typing import Any

from focus_core import assets
from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import shape_of

STORED = False
WINDOWS, CONTEXT = 8, 512
_CLUSTER_SECONDS = 0.5


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of reading the windows and clustering every layer; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    _groups(request)
    assets.check_adapter_name(request.get("name"))
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    context = min(CONTEXT, shape.context)
    one = requests.forward_seconds(shape, context, host)
    need = requests.forward_bytes(shape, context) + 2 * WINDOWS * context * shape.hidden * shape.layers

    def cost(windows: int) -> tuple[float, int]:
        return windows * one + _CLUSTER_SECONDS * shape.layers, need

    detail = f"{say_count(context, 'tokens')} each, {say_count(shape.layers, 'layers')}"
    return host.fit("kmeans", cost, WINDOWS, "windows", detail, fixed=requests.loading(model, host))


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Fit and save."""
    from focus_core.routing.kmeans import fit_kmeans
    from focus_core.routing.windows import spread_windows

    name = assets.check_adapter_name(request.get("name"))
    groups = _groups(request)
    loaded = context.model(requests.model_name(request))
    length = min(CONTEXT, loaded.facts.context)
    ids = loaded.tokenizer(assets.training_text()[: 200 * CONTEXT * WINDOWS], add_special_tokens=False, verbose=False)
    windows = spread_windows(ids["input_ids"], length, WINDOWS)
    adapter = fit_kmeans(loaded.model, windows, groups=groups, progress=context.progress, cancel=context.cancelled)
    adapter.serve["groups"] = groups
    adapter.record |= {"texts": "five Austen novels", "windows": len(windows), "context": length}
    adapter.save_pretrained(context.folder, loaded.model)
    assets.keep_adapter(name, context.folder)
    return {"name": name}


def _groups(request: dict[str, Any]) -> int:
    groups = request.get("groups", 16)
    if not isinstance(groups, int) or isinstance(groups, bool) or not 2 <= groups <= 64:
        raise InvalidInput(f"groups is {groups!r}.", "It can be 2 to 64.")
    return groups
