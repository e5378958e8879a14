"""The daily cycle: which increment is next, whether its version is good enough, and which version is promoted."""
