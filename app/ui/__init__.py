"""Shared parts of the pages: selection, controls, the token strip."""
