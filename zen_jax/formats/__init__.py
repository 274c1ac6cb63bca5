"""Message formats: how each sparse format is packed into one message of uint32 words, and how many bytes it takes."""
