# What a node has: Python, torch and DeepSpeed's dependencies. It is the place of
# the smoke test, and the ground of every toolchain. The stage named base is put
# before this text by dsbuild, the toolchain's own stage behind it.

FROM base AS runtime
ENV LC_ALL=C.UTF-8 PATH=/opt/env/bin:/opt/uv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/opt/env DSBUILD_ENV=/opt/env UV_NO_CACHE=1
ARG PYTHON
COPY site.sh install.sh python.sh /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-apt,target=/var/cache/apt,sharing=locked --mount=type=secret,id=site \
    PYTHON="${PYTHON}" sh /opt/dsbuild/python.sh
COPY uv.sh uv.txt /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-pip,target=/root/.cache/pip,sharing=locked --mount=type=secret,id=site \
    PYTHON="${PYTHON}" sh /opt/dsbuild/uv.sh /opt/uv
# torch is by far the largest of all: it lies in a layer of its own, and nowhere
# a second time, which is why uv keeps nothing.
ARG TORCH
ARG TORCH_INDEX
COPY torch.sh packages.txt /opt/dsbuild/
RUN --mount=type=secret,id=site \
    PYTHON="${PYTHON}" TORCH="${TORCH}" TORCH_INDEX="${TORCH_INDEX}" sh /opt/dsbuild/torch.sh
COPY runtime.sh runtime.txt /opt/dsbuild/
RUN --mount=type=secret,id=site \
    sh /opt/dsbuild/runtime.sh
ARG REQUIRES
COPY ops.sh packages-build.txt /opt/dsbuild/
RUN --mount=type=secret,id=site \
    REQUIRES="${REQUIRES}" sh /opt/dsbuild/ops.sh
