"""What runs inside the sandbox: standard library only, loaded as the top-level package `cell` without `assay`."""
