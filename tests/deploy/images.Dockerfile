# Stand-ins for public images, from Debian's packages.
FROM python:3.13-slim AS packages
RUN apt-get update \
    && apt-get install --yes --no-install-recommends redis-server wget
# Debian's releases have an older version of Prometheus than docker-compose.yml needs.
# A mirror may be a frozen copy, whose date has expired; signatures are checked.
RUN sed 's/ trixie / sid /' /etc/apt/sources.list > /etc/apt/sources.list.d/sid.list \
    && apt-get update -o Acquire::Check-Valid-Until=false \
    && cd /tmp && apt-get download prometheus/sid \
    && for package in *.deb; do dpkg-deb --extract "$package" extracted; done \
    && mv extracted/usr/bin/prometheus /usr/bin/ \
    && rm -r /tmp/*
# Owners are those of the public images.
RUN install -d -o 999 -g 999 /data \
    && install -d -o 65534 -g 65534 /prometheus

FROM packages AS redis
WORKDIR /data
VOLUME /data

FROM packages AS prometheus
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]

# In place of vLLM's image: a Python with most packages, but not all.
FROM standin-packages AS vllm
RUN pip uninstall --quiet --yes rewardfleet redis msgspec && pip install --quiet --no-deps sortedcontainers==2.3.0
