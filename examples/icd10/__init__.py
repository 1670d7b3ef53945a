"""Example: an agent finds the ICD-10-CM codes of a doctor's visit, quickly and only for the doctor's findings."""
