# Image of Headgate: `headgate up` on SQLite with a volume, or `headgate up` and `headgate worker` on DynamoDB.
# tests/soak/containers.py runs these steps in a clean root; docs/how-to/run-in-containers.md tells how to run the image.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python3 -m venv /opt/build && python3 -m venv /opt/headgate
COPY deploy/container/*.lock deploy/container/
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes -r deploy/container/build-requirements.lock \
 && /opt/headgate/bin/pip install --no-cache-dir --no-compile --require-hashes -r deploy/container/requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY deploy/statemachine.asl.json deploy/
COPY src src
# The root file system is read-only at run time, so modules are compiled here.
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
 && /opt/headgate/bin/pip install --no-cache-dir --no-compile --no-index --no-deps /wheels/*.whl \
 && /opt/headgate/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/headgate/lib

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 headgate \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/headgate --shell /usr/sbin/nologin headgate \
 && install --directory --owner=headgate --group=headgate --mode=0700 /var/lib/headgate \
 && install --directory /app
COPY --from=build /opt/headgate /opt/headgate
ENV PATH=/opt/headgate/bin:/usr/local/bin:/usr/bin:/bin HEADGATE_HOME=/var/lib/headgate/home HEADGATE_LOG_FORMAT=json
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Modules of apps, pipeline definitions and headgate.toml.
WORKDIR /app
VOLUME /var/lib/headgate /tmp
EXPOSE 8400 8401
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["headgate"]
CMD ["up"]
