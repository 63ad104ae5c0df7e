# docker build -t htc-operator:dev .
# docker build -t htcondor:dev --target htcondor .
#
# The operator with HTCondor's command-line tools and Kerberos. It runs as uid 10001 with a read-only root file system;
# volumes go to /data, /state, /tmp and, for its configuration and credentials, /etc/htc-operator and /credentials.

FROM rust:1.95.0-slim-trixie AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
# The workspace names the tests' crates; only their manifests are needed.
COPY tests/testbed/Cargo.toml tests/testbed/
COPY tests/bed/Cargo.toml tests/bed/
COPY tests/bench/Cargo.toml tests/bench/
COPY tests/model/Cargo.toml tests/model/
COPY tests/synced/Cargo.toml tests/synced/
RUN for crate in testbed bed bench model synced; do mkdir -p tests/$crate/src && : >tests/$crate/src/lib.rs; done
RUN cargo build --locked --release --package htc-operator --package htc-confine

# HTCondor's daemons for pools that the operator runs (spec.managed of an HTCPool), in a folder that runs in any image: workers get
# a copy of it. It runs as nobody.
FROM debian:trixie-slim AS htcondor-tree
COPY deploy/image/htcondor-packages deploy/image/relocate.sh /tmp/image/
WORKDIR /tmp/packages
RUN apt-get update \
    && apt-get install -y --no-install-recommends patchelf \
    && grep -v '^#' /tmp/image/htcondor-packages | xargs apt-get download \
    && for package in *.deb; do dpkg-deb -x "$package" /htcondor; done
# Before they are relocated: they run in any image, too.
COPY --from=build /build/target/release/htc-confine /build/target/release/htc-job-wrapper /htcondor/usr/libexec/condor/
RUN sh /tmp/image/relocate.sh /htcondor /htcondor

FROM debian:trixie-slim AS htcondor
COPY --from=htcondor-tree /htcondor /htcondor
# So that `kubectl exec` finds HTCondor's tools.
ENV PATH=/htcondor/usr/bin:$PATH
USER 65534:65534

FROM debian:trixie-slim
COPY deploy/image/packages deploy/image/prepare.sh /tmp/image/
RUN apt-get update \
    && grep -v '^#' /tmp/image/packages | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* \
    && sh /tmp/image/prepare.sh / \
    && rm -r /tmp/image
COPY --from=build /build/target/release/htc-operator /usr/local/bin/
USER 10001:10001
# tini takes in the ends of orphaned processes: the operator must see that a tool which it killed is gone.
ENTRYPOINT ["tini", "--", "htc-operator"]
CMD ["run"]
