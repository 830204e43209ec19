"""`python -m workers.health worker|controller`: for health checks. Exit status 0 if Redis has a fresh sign of life of it."""

from __future__ import annotations

import sys

import redis

from workers.config import Config
from workers.contract.messages import CONTROLLER_KEY, host_key

TIMEOUT_S = 5.0


def main(arguments: list[str]) -> int:
    config = Config.from_environment()
    # Both keys go by themselves when nobody renews them.
    keys = {"worker": host_key(config.host_name), "controller": CONTROLLER_KEY}
    if len(arguments) != 1 or arguments[0] not in keys:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with redis.Redis.from_url(
            config.redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        ) as client:
            seen = client.exists(keys[arguments[0]])
    except redis.RedisError as error:
        print(f"Redis cannot be reached: {type(error).__name__}")
        return 1
    print("ok" if seen else f"The {arguments[0]} has not been heard of for a while.")
    return 0 if seen else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
