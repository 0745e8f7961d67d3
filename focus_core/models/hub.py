"""Models from Hugging Face: the local cache first, the network only when needed and never waited for long."""

from __future__ import annotations

import fnmatch
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focus_core.errors import Cancelled, InvalidInput, NotAvailable, TooLarge, Unsupported
from focus_core.models.child import answer, follow, module_command, reraise
from focus_core.models.folders import hub_folder
from focus_core.models.headers import folder_weights
from focus_core.models.memory import check_fits

ANSWER_WITHIN = 15.0
"""Seconds for the first answer, the start of the asking process included."""

REQUEST_TIMEOUT = 6.0
STALLED_AFTER = 120.0
WANTED = ("*.safetensors", "*.json", "*.model", "*.jinja", "merges.txt", "vocab.txt")
UNWANTED = ("*/*", "consolidated*", "training_args*", "trainer_state*")
AGAIN = "Try again: the files that are whole are not fetched twice."
LOCAL = "Use smollm2, or a model folder or .gguf file on this machine."


def snapshot(
    name: str,
    *,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    dtype: str | None = None,
    device: str = "cpu",
) -> tuple[Path, str]:
    """The folder of a Hugging Face model, downloaded when it is not in the local cache.

    Args:
        name: the id, for example ``org/name``.
        progress: told the fraction done and a sentence.
        cancel: asked five times a second; of a stopped download, the files that are whole stay.
        dtype: the dtype it will be loaded in, for the memory check before the download.
        device: where it will be loaded.

    Returns:
        The folder and the commit.

    Raises:
        NotAvailable: there is no such model, it is gated, or the network cannot be reached; within seconds.
        Unsupported: it has no safetensors.
        TooLarge: it does not fit in free memory, or on the disk.
        Cancelled: on request.
    """
    if (cached := cached_snapshot(name)) is not None:
        return cached, cached.name
    tell = progress or (lambda fraction, message: None)
    tell(0.0, f"Asking Hugging Face for {name}")
    found: dict[str, Any] = {}
    left_over: set[Path] = set()
    started = moved = time.monotonic()
    last = -1

    def line(text: str) -> None:
        document = json.loads(text)
        reraise(document)
        if "bytes" in document:
            _check_sizes(name, document, dtype, device)
            left_over.update(Path(document["blobs"]).glob("*.incomplete"))
        found.update(document)

    def tick() -> None:
        nonlocal moved, last
        now = time.monotonic()
        if "bytes" not in found:
            if now - started > ANSWER_WITHIN:
                raise _unreachable(name)
            return
        here = _bytes_in(Path(found["blobs"]), left_over)
        if here != last:
            moved, last = now, here
        if now - moved > STALLED_AFTER:
            raise NotAvailable(
                f"The download of {name} has stood still for {STALLED_AFTER:.0f} s.",
                AGAIN,
            )
        total = max(found["bytes"], 1)
        tell(min(0.99, here / total), f"Downloading {name} ({here / 1e6:,.0f} of {total / 1e6:,.0f} MB)")

    command, environment = module_command("focus_core.models.hub", name)
    code, noise = follow(
        command,
        line=line,
        tick=tick,
        cancel=cancel,
        stopped=Cancelled(f"The download of {name} was stopped.", AGAIN),
        # Plain downloads grow in a file that can be measured; Xet's may not.
        environment=environment | {"HF_HUB_DISABLE_XET": "1"},
    )
    if code != 0 or "folder" not in found:
        raise NotAvailable(f"The download of {name} failed ({noise or 'no message'}).", AGAIN)
    tell(1.0, f"{name} is here")
    return Path(found["folder"]), found["revision"]


def cached_snapshot(name: str) -> Path | None:
    """The folder of a complete copy in the local Hugging Face cache; None when there is none."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", cache_dir=hub_folder())
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        folder_weights(folder)
    except InvalidInput:
        return None
    return folder


def _check_sizes(name: str, document: dict[str, Any], dtype: str | None, device: str) -> None:
    if document["values"]:
        check_fits(name, document["values"], dtype or ("float32" if device == "cpu" else "bfloat16"), device)
    place = hub_folder()
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    if document["bytes"] > free:
        raise TooLarge(
            f"{name} is a download of {document['bytes'] / 1e9:.1f} GB; {free / 1e9:.1f} GB is free on the disk.",
            "Free disk space, or set HF_HOME to a larger disk.",
        )


def _bytes_in(folder: Path, apart_from: set[Path]) -> int:
    total = 0
    for path in set(folder.glob("*")) - apart_from:
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed between the two calls
            continue
    return total


def _unreachable(name: str) -> NotAvailable:
    return NotAvailable(f"{name} is not on this machine, and Hugging Face cannot be reached.", LOCAL)


def _download(name: str, send: Callable[[dict[str, Any]], None]) -> None:
    """The work itself, in the child."""
    from huggingface_hub import HfApi, errors, hf_hub_download

    try:
        info = HfApi().model_info(name, timeout=REQUEST_TIMEOUT, files_metadata=True)
    except errors.GatedRepoError:
        raise _gated(name) from None
    except errors.RepositoryNotFoundError:
        raise NotAvailable(f"There is no public model {name} on Hugging Face.", f"Check the id. {LOCAL}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        if status == 404:
            raise NotAvailable(f"There is no model {name} on Hugging Face.", f"Check the id. {LOCAL}") from None
        raise NotAvailable(f"Hugging Face refused {name} ({status}).", LOCAL) from None
    except Exception:
        raise _unreachable(name) from None
    files = {
        s.rfilename: s.size or 0
        for s in info.siblings or ()
        if any(fnmatch.fnmatch(s.rfilename, p) for p in WANTED)
        and not any(fnmatch.fnmatch(s.rfilename, p) for p in UNWANTED)
    }
    if "config.json" not in files:
        raise Unsupported(f"{name} has no config.json: it is no transformers model.", LOCAL)
    if not any(f.endswith(".safetensors") for f in files):
        raise Unsupported(f"{name} has no safetensors; pickled weights are not opened.", LOCAL)
    cache = hub_folder()
    blobs = cache / f"models--{name.replace('/', '--')}" / "blobs"
    values = info.safetensors.total if info.safetensors else 0
    send({"bytes": sum(files.values()), "values": values, "blobs": str(blobs)})
    folder = ""
    try:
        # The config goes last: a copy that has one is complete.
        for file in sorted(files, key=lambda f: f == "config.json"):
            folder = str(Path(hf_hub_download(name, file, revision=info.sha, cache_dir=cache)).parent)
    except errors.GatedRepoError:
        raise _gated(name) from None
    refs = blobs.parent / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(str(info.sha), encoding="utf-8")
    send({"folder": folder, "revision": str(info.sha)})


def _gated(name: str) -> NotAvailable:
    return NotAvailable(
        f"{name} is gated: its terms must be accepted on Hugging Face.", "Accept them, then run: hf auth login"
    )


if __name__ == "__main__":
    answer(lambda send: _download(sys.argv[1], send))
