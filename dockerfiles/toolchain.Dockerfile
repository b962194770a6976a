# What a build needs: compilers, the CUDA toolkit, what the ops ask for. What
# differs between the sources of CUDA is in the scripts, under the
# source's name; what changes most often comes last.

FROM runtime AS toolchain
ARG PYTHON
ARG CUDA_SOURCE
ARG GCC
COPY compilers.sh /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-apt,target=/var/cache/apt,sharing=locked --mount=type=secret,id=site \
    PYTHON="${PYTHON}" GCC="${GCC}" CUDA_SOURCE="${CUDA_SOURCE}" sh /opt/dsbuild/compilers.sh
ARG CUDA_HOME
ENV CUDA_HOME=${CUDA_HOME} DSBUILD_CUDA=${CUDA_HOME}
ARG TOOLKIT
ARG CUDA_PACKAGES
COPY build.sh build.txt nvcc.py nvcc12.txt ptxas12.txt nothrow.h toolkit.de[b] /opt/dsbuild/
RUN --mount=type=secret,id=site \
    CUDA_SOURCE="${CUDA_SOURCE}" TOOLKIT="${TOOLKIT}" CUDA_PACKAGES="${CUDA_PACKAGES}" sh /opt/dsbuild/build.sh toolkit
ARG COMPONENTS
ARG PACKAGES
RUN --mount=type=secret,id=site \
    CUDA_SOURCE="${CUDA_SOURCE}" TOOLKIT="${TOOLKIT}" COMPONENTS="${COMPONENTS}" PACKAGES="${PACKAGES}" sh /opt/dsbuild/build.sh ops
# It comes last, so that wheels for both machines share all else.
ARG CROSS
COPY cross.sh emulated.sh nvidia_standins.py cpuinfo.txt packages-aarch64.tx[t] /opt/dsbuild/
RUN --mount=type=cache,id=dsbuild-apt,target=/var/cache/apt,sharing=locked --mount=type=secret,id=site \
    CROSS="${CROSS}" GCC="${GCC}" PYTHON="${PYTHON}" sh /opt/dsbuild/cross.sh
