"""The teachers: finding, building and freezing them."""
