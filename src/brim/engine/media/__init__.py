"""Images of prompts: read, prepared and checked on the host, encoded on the device."""
