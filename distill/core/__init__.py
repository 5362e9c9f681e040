"""What every room may use: contracts, errors, options, the console, files, caches and mirrors."""
