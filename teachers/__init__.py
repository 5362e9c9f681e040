"""Teacher models: loaded from a directory or the Hub, or built from embeddings."""
