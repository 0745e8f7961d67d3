"""The engine of Focus Lab: attention variants on pretrained language models.

Importing this package imports no torch; the modules that compute do that themselves.
"""

__version__ = "0.1.0"
