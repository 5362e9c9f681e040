"""Raw text: files, documents, packed sequences, masks."""
