# Baton as an image. Its kernels are compiled here, so nothing is when it starts.
#
#   docker build -t baton .                                for CPUs
#   docker build -t baton-cuda --build-arg TORCH=cu130 .   for NVIDIA GPUs: any of uv's --torch-backend
ARG PYTHON=3.12.12
ARG DEBIAN=bookworm
# A tag rather than a digest: each build has Debian's fixes of the day, on any architecture. For the same bits every time
# name them: --build-arg BASE=python@sha256:...
ARG BASE=python:${PYTHON}-slim-${DEBIAN}

FROM ${BASE} AS build
ARG TORCH=cpu
# The kinds of CPU that kernels are compiled for; `armv8-a` on a machine of that kind.
ARG VARIANTS=portable
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 VIRTUAL_ENV=/opt/baton
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build

# What Baton needs comes first: it changes less often than Baton.
COPY constraints.txt pyproject.toml ./
RUN pip install --no-cache-dir -c constraints.txt uv \
 && uv venv /opt/baton \
 && uv pip install --torch-backend "${TORCH}" -c constraints.txt torch \
 && uv pip install --torch-backend "${TORCH}" -c constraints.txt -r pyproject.toml --extra telemetry --extra kubernetes \
 && if [ "${TORCH}" != cpu ]; then \
      uv pip install --torch-backend "${TORCH}" -c constraints.txt -r pyproject.toml --extra gpu; \
    fi

COPY . .
RUN PYTHONPATH=src /opt/baton/bin/python -m baton.kernels.cpu --into build/prebuilt ${VARIANTS} \
 && BATON_PREBUILT=build/prebuilt uv build --wheel --out-dir dist \
 && uv pip install --no-deps dist/*.whl

FROM ${BASE}
ARG TORCH=cpu
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# Triton compiles a piece of C for each kernel that it launches.
# hadolint ignore=DL3008
RUN if [ "${TORCH}" != cpu ]; then \
      apt-get update \
   && apt-get install -y --no-install-recommends gcc libc6-dev \
   && rm -rf /var/lib/apt/lists/*; \
    fi \
 && useradd --uid 10001 --user-group --create-home --home-dir /home/baton baton
COPY --from=build /opt/baton /opt/baton
ENV PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.title="Baton" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /home/baton
USER 10001:10001
EXPOSE 8000 8001
HEALTHCHECK --start-period=5m CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://localhost:8000/health', timeout=5)"]
CMD ["baton", "serve", "--host", "0.0.0.0"]
