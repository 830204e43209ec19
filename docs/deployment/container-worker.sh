#!/bin/sh
# The main process of a worker's container. When it ends, the container ends, and with it every supervisor and rank in it:
# so it is this script, which starts the worker again when that dies, and not the worker itself.
stopping=
trap 'stopping=1; kill -TERM "$worker" 2>/dev/null' TERM INT

while [ -z "$stopping" ]; do
    python -m workers &
    worker=$!
    wait "$worker"
    status=$?
    if [ -n "$stopping" ]; then
        # The signal ended the first wait, not the worker.
        wait "$worker"
    elif [ "$status" -eq 2 ]; then
        # A wrong variable: starting again would change nothing. The container's log says what it is.
        exit 2
    else
        sleep 2
    fi
done
exit 0
