# Tidegate in an image: built in one stage, run in another without compilers, as a user of its own, on a root that may be
# read-only. What a node writes is below /data.

FROM rust:1.95-bookworm AS build
# TLS and SCRAM of Kafka; empty = an image without OpenSSL.
ARG FEATURES=tidegate/kafka-tls
# In place of that of .cargo/config.toml, which is for builds that are soon done.
ENV CFLAGS=-g
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package tidegate --bin tidegate --features "$FEATURES" \
    && install -D target/dist/tidegate /out/tidegate

FROM debian:bookworm-slim
# Certificates are to be those of the day, not of a pinned version.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tidegate \
    && install --directory --owner=tidegate --group=tidegate /keys /postgres-keys /grafana-keys /admin-keys \
    && install --directory --owner=tidegate --group=tidegate --mode=700 /data
COPY --from=build /out/tidegate /usr/local/bin/tidegate
ENV TIDEGATE_DATA=/data
USER 10001:10001
VOLUME /data
ENTRYPOINT ["tidegate"]
CMD ["serve"]
