"""The only code that sees the configuration: from it to objects, and one job from start to end."""
