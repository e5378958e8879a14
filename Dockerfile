# The image of every container that runs diurnal: Ray's head and workers, the submitter, the exporter, MLflow's server.
#
#   docker build --build-arg LIBRARIES=cpu --tag diurnal:0.1.0 .
#   docker build --build-arg LIBRARIES=gpu --tag diurnal:0.1.0-gpu .
#
# Packages come from where pip is set up to take them: --secret id=pip.conf,src=pip.conf names another place than usual.
# (torch has its CPU build on an index of its own; without that, LIBRARIES=cpu works as well, and is as large as gpu.)
# What is installed, and in which order, is what platform/install.sh does; a test compares both.
ARG PYTHON=3.11

# The larger base has a compiler, for what may have no wheel.
FROM python:${PYTHON} AS libraries
ARG LIBRARIES=cpu
WORKDIR /opt/diurnal
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
# The package's version and no more of it, so that a change of its code does not install all libraries anew.
COPY platform/diurnal/__init__.py platform/diurnal/
# torchrec without its dependencies: it asks for fbgemm-gpu by name, on CPU machines too.
# Some packages ship templates that are no Python: they are not compiled, and stay as they are.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m pip install --no-compile --constraint constraints.txt torch==2.13.0 setuptools hatchling editables \
    && python -m pip install --no-compile --constraint constraints.txt --no-build-isolation ".[${LIBRARIES},server,s3]" \
    && python -m pip install --no-compile --constraint constraints.txt --no-deps torchrec==1.8.0 \
    && python -m pip uninstall --yes diurnal \
    && (python -m compileall -q -j 0 /opt/venv/lib >/dev/null || true)

FROM libraries AS package
COPY platform platform
RUN python -m hatchling build --target wheel --directory /opt/wheels

FROM python:${PYTHON}-slim
# KubeRay's probes call wget. A login shell, as some operators start Ray with, sets PATH anew.
# hadolint ignore=DL3008,SC2016
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /bin/bash diurnal \
    && echo 'PATH=/opt/venv/bin:$PATH' >/etc/profile.d/diurnal.sh
COPY --from=libraries /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The one small layer that a change of the code makes.
RUN --mount=type=bind,from=package,source=/opt/wheels,target=/opt/wheels \
    python -m pip install --no-cache-dir --no-index --no-deps /opt/wheels/*.whl
WORKDIR /opt/diurnal
COPY jobs/backfill.py jobs/daily.py jobs/train.py jobs/
USER 10001:10001
CMD ["diurnal", "--help"]
