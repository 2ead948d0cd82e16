# An image of the broker: `docker build -t flintmq .`, then
#
#     docker run -v flintmq:/var/lib/flintmq -p 127.0.0.1:10911:10911 -p 127.0.0.1:10912:10912 flintmq --insecure
#     flintmq topic create orders
#
# (A broker that listens beyond loopback does not create topics automatically: see topics.auto_create.)
#
# In a container the broker must listen on all of the container's addresses, which it refuses to do without
# authentication. `--insecure` overrides that. Use it only if strangers cannot reach the published ports, as with
# 127.0.0.1 above. Pass other flags of `flintmq-broker serve` in the same place, and settings as environment variables
# (FLINTMQ_SECTION__NAME). Port 10912 serves /metrics, /healthz and /readyz.

FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .
# The pinned build backend makes the wheel; all others are installed as wheels: the image has no compiler.
RUN pip install --constraint constraints.txt --only-binary :all: hatchling \
 && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/flintmq \
 && pip --python /opt/flintmq install --constraint constraints.txt --only-binary :all: \
        "$(echo /wheels/*.whl)[broker,compression]"


FROM python:3.13-slim
# The kernels are compiled once, here, for any CPU of the architecture. The broker must see the same CPU name when it
# runs; otherwise it finds no kernel in the cache and compiles them again.
ENV PATH=/opt/flintmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=generic \
    FLINTMQ_KERNEL_CACHE=/var/cache/flintmq \
    FLINTMQ_METRICS__LISTEN=0.0.0.0:10912
# The broker trusts the cache only if its own user owns it and no other user can write to it.
RUN useradd --system --uid 10911 --no-create-home --shell /usr/sbin/nologin flintmq \
 && install -d -m 0700 -o flintmq -g flintmq /var/lib/flintmq /var/cache/flintmq
COPY --from=build /opt/flintmq /opt/flintmq
USER flintmq
RUN flintmq-broker warm

VOLUME /var/lib/flintmq
EXPOSE 10911 10912
# A broker that is recovering its store is healthy but not ready yet: route traffic by /readyz instead.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:10912/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
# Exec form, so that the broker is process 1 and gets the signal. It stops within 10 s, Docker's limit.
ENTRYPOINT ["flintmq-broker", "serve", "--store", "/var/lib/flintmq", "--listen", "0.0.0.0:10911"]
