"""Changes of foreign models: layers, embeddings, positions, and other starts."""
