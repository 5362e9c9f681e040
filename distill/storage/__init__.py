"""Files that are written whole: locally, in the cache directory, at a URL and on the Hugging Face Hub."""
