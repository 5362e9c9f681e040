"""A service that runs distillations of several people on one machine: jobs are submitted, watched and fetched."""
