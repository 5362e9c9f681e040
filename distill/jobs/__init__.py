"""The jobs, the only code that reads the configuration."""
