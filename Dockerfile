# `egs kubernetes`: the controller of a cluster, and the process that opens what is overdue. From this folder:
#     docker build -t REGISTRY/egs:VERSION .
# Versions are those of constraints.txt, which is resolved for this Python.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md constraints.txt ./
COPY egs_core egs_core
RUN python -m venv /opt/egs
RUN /opt/egs/bin/python -m pip install --no-cache-dir --constraint constraints.txt .[kubernetes]

FROM python:3.11-slim
COPY --from=build /opt/egs /opt/egs
ENV PATH=/opt/egs/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 65534:65534
ENTRYPOINT ["egs"]
CMD ["kubernetes", "controller"]
