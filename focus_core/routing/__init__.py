"""Focus's router: centroids, balancing and memberships; and the controls that use none of them.

Importing this package imports every adapter kind in it, so that ``load_adapter`` knows them.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
