"""Focus Lab in the browser: pages, controls and the engine client. Imports no torch."""
