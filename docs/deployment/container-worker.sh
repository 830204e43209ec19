#!/bin/sh
# The main process of a worker's container. When it ends, the container ends, and with it every supervisor and rank in it:
# so it is this script, which starts the worker again when that dies, and not the worker itself.
stopping=
trap 'stopping=1; kill -TERM "$worker" 2>/dev/null' TERM INT

while [ -z "$stopping" ]; do
    python -m workers &
    worker=$!
    # A signal interrupts the first wait; the second is for the end.
    wait "$worker"
    wait "$worker" 2>/dev/null
    status=$?
    # A wrong variable: starting again would change nothing, and the container's log says what it is.
    [ "$status" -eq 2 ] && exit 2
    [ -z "$stopping" ] && sleep 2
done
