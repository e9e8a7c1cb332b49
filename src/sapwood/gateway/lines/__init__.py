"""The line protocol: messaging for whoever can open a connection, with netcat or a WebSocket.

In: lines `[COMMAND] {"key": value}`. Out: for each, in order, `[RESULT] OK` or `[RESULT] ERROR
{"code", "message"}`; and between them, whenever there is one, `[NEW_MESSAGE] {…}`.
`words` reads and writes lines; `session` is one connection's state; `feed` reads each topic once
for all connections that listen to it; `serving` has the sockets.
Always: a line has a bound, and one that is longer costs its sender that line; a reader that falls
behind is told and let go, or, if its subscription is durable, waited for.
"""
