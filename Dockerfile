# Two images, both without root: docker build --target cpu -t glt:cpu . and docker build --target cuda -t glt:cuda .
# docker run --rm --volume "$PWD:/work" --user "$(id -u):$(id -g)" glt:cpu fit --config run.yaml

FROM python:3.11-slim-trixie AS build-cpu
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel . --no-cache-dir --no-deps --wheel-dir /wheels --config-settings cmake.define.GLT_CUDA=OFF

# nvcc of an older glibc than that of the image that runs what it builds
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build-cuda
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make python3-venv && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /venv
WORKDIR /source
COPY . .
RUN /venv/bin/pip wheel . --no-cache-dir --no-deps --wheel-dir /wheels \
      --config-settings cmake.define.GLT_CUDA=ON --config-settings cmake.define.GLT_CUDA_ARCHITECTURES=ALL

FROM python:3.11-slim-trixie AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN useradd --create-home --uid 1000 glt && install --directory --owner glt /work
WORKDIR /work
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["glt-lightning"]
CMD ["--help"]

FROM base AS cuda
COPY --from=build-cuda /wheels /wheels
# torch of PyPI brings its own libraries of CUDA
# hadolint ignore=DL3013
RUN pip install --no-cache-dir /wheels/*.whl
USER 1000

# the last stage is what `docker build .` makes
FROM base AS cpu
COPY --from=build-cpu /wheels /wheels
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu /wheels/*.whl
USER 1000
