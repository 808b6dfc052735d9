"""Pure functions from facts to findings, one file per family; `registry` lists them."""
