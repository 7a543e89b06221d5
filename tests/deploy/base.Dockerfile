# A stand-in for the public image python:3.13-slim, from Debian's own Python.
FROM rootfs
COPY ca-certificates.crt /usr/local/share/ca-certificates/host.crt
COPY pip.conf /etc/pip.conf
RUN update-ca-certificates \
    && ln -s /usr/bin/python3 /usr/local/bin/python \
    && ln -s /usr/bin/pip3 /usr/local/bin/pip \
    && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
