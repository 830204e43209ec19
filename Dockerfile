# Images of all parts: `docker compose build`. docs/deployment.md says what has been checked, and what has not.
#
#   web, controller, migrate   target web          Django, no Paddle
#   worker                     target worker-cpu   Paddle for CPUs, no Django
#   worker-gpu                 target worker-gpu   Paddle's own GPU image (unverified)
#   proxy                      target proxy        nginx with the static files

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG NODE_IMAGE=node:24-slim
ARG NGINX_IMAGE=nginx:1.28-alpine
ARG PADDLE_GPU_IMAGE=paddlepaddle/paddle:3.3.1-gpu-cuda12.6-cudnn9.5
# The commit that this is: docker compose build --build-arg REVISION=$(git rev-parse HEAD). Each attempt notes it down.
ARG REVISION=

# --- front-end libraries ---
FROM ${NODE_IMAGE} AS frontend
WORKDIR /build
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts --no-audit --no-fund

# --- what all but the GPU worker begin with ---
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/venv/bin:$PATH \
    STORAGE_ROOT=/srv/evenkeel/storage \
    SCRATCH_ROOT=/srv/evenkeel/scratch \
    DATA_DIR=/srv/evenkeel/data
# One user in all images, so that what one part writes to a volume another may read.
# A new volume takes the owner of the folder that it is mounted on.
RUN groupadd --gid 10001 evenkeel && useradd --uid 10001 --gid 10001 --create-home evenkeel \
    && install -d -o evenkeel -g evenkeel -m 0750 /srv/evenkeel /srv/evenkeel/storage /srv/evenkeel/scratch \
        /srv/evenkeel/data /srv/evenkeel/models
WORKDIR /opt/evenkeel

# --- web and controller ---
FROM base AS web
COPY requirements/web.txt requirements/
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --require-hashes --no-deps -r requirements/web.txt
COPY manage.py pyproject.toml ./
COPY webapp webapp
COPY jobs jobs
COPY workers workers
COPY templates templates
COPY locale locale
COPY --from=frontend /build/node_modules/uplot/dist node_modules/uplot/dist
ENV STATIC_ROOT=/srv/evenkeel/static
# As root: the user that serves pages cannot change what it serves. The key that this makes goes with its folder.
RUN for po in $(find locale -name '*.po'); do pybabel -q compile -i "$po" -o "${po%.po}.mo"; done \
    && DATA_DIR=/tmp/build python manage.py collectstatic --noinput \
    && rm -r /tmp/build && python -m compileall -q manage.py webapp jobs workers
USER evenkeel
EXPOSE 8000
# WEB_CONCURRENCY says how many processes; uvicorn reads it.
CMD ["uvicorn", "webapp.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--lifespan", "off", \
     "--timeout-graceful-shutdown", "3", "--no-server-header", "--no-access-log", "--no-proxy-headers"]

# --- worker on a CPU host ---
FROM base AS worker-cpu
# Paddle's library is linked against GNU OpenMP.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY requirements/worker.txt requirements/trainer-cpu.txt requirements/
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes --no-deps -r requirements/worker.txt -r requirements/trainer-cpu.txt
COPY pyproject.toml docs/deployment/container-worker.sh ./
COPY workers workers
RUN python -m compileall -q workers
ARG REVISION
ENV EVENKEEL_REVISION=$REVISION
# Caches of libraries; a volume, as the rest of the file system is read-only.
ENV MODEL_ROOTS=/srv/evenkeel/models HOME=/srv/evenkeel/data
USER evenkeel
CMD ["./container-worker.sh"]

# --- worker on a GPU host: UNVERIFIED, nothing of this project has run on a GPU yet ---
FROM ${PADDLE_GPU_IMAGE} AS worker-gpu
# The image has paddlepaddle-gpu in its own Python (3.10). Our packages go beside it and come first on the path.
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONPATH=/opt/packages \
    STORAGE_ROOT=/srv/evenkeel/storage \
    SCRATCH_ROOT=/srv/evenkeel/scratch \
    DATA_DIR=/srv/evenkeel/data \
    MODEL_ROOTS=/srv/evenkeel/models \
    HOME=/srv/evenkeel/data
RUN groupadd --gid 10001 evenkeel && useradd --uid 10001 --gid 10001 --home-dir /srv/evenkeel/data evenkeel \
    && install -d -o evenkeel -g evenkeel -m 0750 /srv/evenkeel /srv/evenkeel/storage /srv/evenkeel/scratch \
        /srv/evenkeel/data /srv/evenkeel/models
WORKDIR /opt/evenkeel
COPY requirements/worker.txt requirements/trainer-base.txt requirements/
RUN python -m pip install --require-hashes --no-deps --target /opt/packages \
    -r requirements/worker.txt -r requirements/trainer-base.txt
COPY pyproject.toml docs/deployment/container-worker.sh ./
COPY workers workers
RUN python -m compileall -q workers
ARG REVISION
ENV EVENKEEL_REVISION=$REVISION
USER evenkeel
CMD ["./container-worker.sh"]

# --- proxy ---
FROM ${NGINX_IMAGE} AS proxy
RUN mkdir -p /etc/nginx/evenkeel /etc/evenkeel/tls && install -d -o 10001 -g 10001 /srv/evenkeel/storage
COPY docs/deployment/nginx/container.conf /etc/nginx/nginx.conf
COPY docs/deployment/nginx/site.conf /etc/nginx/evenkeel/site.conf
COPY --from=web /srv/evenkeel/static /srv/evenkeel/static
# The user that writes STORAGE_ROOT, so that the proxy may read it. Ports are above 1023.
USER 10001:10001
EXPOSE 8080 8443
ENTRYPOINT ["nginx", "-g", "daemon off;"]
CMD []
