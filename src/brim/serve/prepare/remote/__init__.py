"""Images that are elsewhere, fetched for a request where the server was told that it may."""
