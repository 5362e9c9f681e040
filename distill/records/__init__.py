"""run.json, the reports made from it, and resumed runs."""
