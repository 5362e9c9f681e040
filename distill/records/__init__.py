"""run.json, the reports made of it, and runs that are resumed."""
