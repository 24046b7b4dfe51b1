"""The endpoints: requests in from HTTP, answers out."""
