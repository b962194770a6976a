# The toolchain for CUDA 13: everything of CUDA comes from Python packages.
#
# Two images: runtime is what a node has (Python, torch, DeepSpeed's
# dependencies), the place of the smoke test; toolchain adds compilers and
# the CUDA toolkit. The stage named base is put before this text by dsbuild.

FROM base AS runtime
ARG UV_VERSION=0.13.8
ARG PYTHON=3.11
ENV DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    UV_LINK_MODE=copy UV_CACHE_DIR=/cache/uv UV_HTTP_TIMEOUT=180 UV_PYTHON_DOWNLOADS=never
RUN --mount=type=cache,id=dsbuild-apt,target=/var/cache/apt,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get -q update && \
    apt-get -qy install --no-install-recommends ca-certificates python3 python3-venv libstdc++6
RUN --mount=type=cache,id=dsbuild-pip,target=/root/.cache/pip,sharing=locked \
    python3 -m venv /opt/uv && /opt/uv/bin/pip -q install uv==${UV_VERSION} && ln -s /opt/uv/bin/uv /usr/local/bin/uv
ENV VIRTUAL_ENV=/opt/env PATH=/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ARG TORCH
COPY runtime.txt /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-uv,target=/cache/uv,sharing=shared \
    uv venv -q --python ${PYTHON} /opt/env && uv pip install torch==${TORCH} -r /opt/dsbuild/runtime.txt

FROM runtime AS toolchain
RUN --mount=type=cache,id=dsbuild-apt,target=/var/cache/apt,sharing=locked \
    apt-get -q update && apt-get -qy install --no-install-recommends gcc g++ libc6-dev python3-dev ccache binutils
ARG TOOLKIT
COPY build.txt /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-uv,target=/cache/uv,sharing=shared \
    uv pip install -r /opt/dsbuild/build.txt \
      "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart,cublas,curand,cusolver,cusparse]==${TOOLKIT}" && \
    CUDA_HOME=$(echo /opt/env/lib/python*/site-packages/nvidia/cu13) && ln -s "$CUDA_HOME" /opt/cuda && \
    ln -s lib /opt/cuda/lib64 && cd /opt/cuda/lib && \
    for so in *.so.*; do [ -e "${so%%.so.*}.so" ] || ln -s "$so" "${so%%.so.*}.so"; done
ENV CUDA_HOME=/opt/cuda
