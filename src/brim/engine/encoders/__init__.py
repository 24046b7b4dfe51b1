"""Towers in processes of their own: features of images and audio, made beside the engine and kept for it."""
