"""The frozen records that travel between the stages. Nothing here computes more than it derives from itself."""
