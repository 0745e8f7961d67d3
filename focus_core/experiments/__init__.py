"""Experiments: small files that say what is trained and measured, and what runs, resumes and skips them."""
