"""Visits at the doctor's become ICD-10-CM codes: with a search over the list, quickly, and only what was found."""
