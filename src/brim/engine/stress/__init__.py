"""The worst steps that serving can produce, constructed for the fit."""
