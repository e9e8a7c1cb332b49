"""One node as a process: settings in, a running broker behind its listeners, a clean end.

`run` takes a `NodeConfig` (defaults, then a TOML file, then SAPWOOD_* variables, then flags),
locks the data directory, takes its ports, recovers the broker, and only then lets anybody in and
writes `ready.json`. SIGTERM or SIGINT: no new requests, answers finish, everything is flushed.
What always holds: one node per data directory; `ready.json` is there only while the node may be
talked to or after it was killed; a failed start is one line on stderr and exit status 1.
`process` starts such a node as a child that ends when its parent does.
"""
