"""Trace or result in, table or figure out. No Streamlit, no model, no torch."""
