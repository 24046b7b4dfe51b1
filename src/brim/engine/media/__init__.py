"""Images of prompts: read, prepared and checked on the host, turned into features on the device."""
