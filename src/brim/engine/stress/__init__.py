"""The worst steps that serving may ask of an engine, made by hand for the fit."""
